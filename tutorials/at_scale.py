# %% [markdown]
# # At scale: workers, stores, and evaluations that take long
#
# A chemical leaks into a river and is measured downstream. A partial differential equation
# describes how it spreads. Solving the equation takes less than a tenth of a second here, so that
# this page can be made in minutes. If one solution took minutes, the code below would be the same.
# The page solves two problems of different kinds:
#
# - **A slow likelihood.** The measurements are the solution plus noise. `pk.sample_surrogate` finds
#   the posterior from fewer than a hundred solutions, on any number of workers.
# - **A slow simulator.** The flow varies at random from day to day, so there is no simple
#   likelihood. `pk.simulate` runs the simulations on a cluster and saves them in a store, from
#   which a killed run can continue.
#
# What you learn: how to use Dask, what a store does, and how to check that few evaluations were
# enough.

# %%
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from distributed import Client, SubprocessCluster
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy.integrate import solve_ivp

import pymc_kernel as pk

CELLS = 1000  # of the grid

# %% [markdown]
# ## The equation
#
# A kilogram leaks in at the upstream end, at a rate that dies away. The current carries it
# downstream, turbulence spreads it, and it decays. The river is divided into cells, and an implicit
# SciPy solver computes the concentration in each.

# %%
METERS, HOURS = 2000.0, np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0])
STATIONS = np.array([400.0, 1200.0])  # meters downstream


def concentrations(speed, spreading, decay):
    """Return grams in a meter of river at both stations and all hours (2, 8).

    ``speed`` in meters, ``spreading`` in square meters, ``decay`` of a share, each an hour.
    """
    width = METERS / CELLS
    places = (np.arange(CELLS) + 0.5) * width

    def change(hour, amount):
        flow = np.empty(CELLS + 1)
        flow[0] = 1000.0 * 4.0 * np.exp(-4.0 * hour)
        flow[1:] = speed * amount
        flow[1:-1] -= spreading * np.diff(amount) / width
        return -np.diff(flow) / width - decay * amount

    solved = solve_ivp(
        change,
        (0.0, HOURS[-1]),
        np.zeros(CELLS),
        "LSODA",
        HOURS,
        rtol=1e-6,
        atol=1e-8,
        lband=1,
        uband=1,
    )
    return np.stack(
        [[np.interp(s, places, amount) for amount in solved.y.T] for s in STATIONS]
    )


start = time.perf_counter()
truth = {"speed": 800.0, "spreading": 2e4, "decay": 0.3}
clean = concentrations(**truth)
print(f"one solution takes {time.perf_counter() - start:.3f} s")
rng = np.random.default_rng(1)
noise = rng.standard_normal((2, *clean.shape))
measured = clean * np.exp(0.1 * noise[0]) + 0.003 * noise[1]

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for station, amounts, marker in zip(STATIONS, measured, ("o-", "s--"), strict=True):
    axis.plot(HOURS, amounts, marker, label=f"{station:.0f} m downstream")
axis.set(xlabel="hours after the leak", ylabel="grams in a meter of river")
axis.legend(frameon=False)
figure.savefig("measured.png", dpi=100)

# %% [markdown]
# ## Workers
#
# We use two, as processes on this machine. On a cluster you would connect to the scheduler by its
# address, `Client("tcp://...:8786")`; nothing else changes. Executors from `concurrent.futures` and
# `mpi4py.futures` work too, and a number such as `executor=8` starts that many processes.

# %%
cluster = SubprocessCluster(n_workers=2, threads_per_worker=1, silence_logs=40)
client = Client(cluster)
executor = client.get_executor()

# %% [markdown]
# ## A slow likelihood
#
# The solver is a black box in a PyMC model. We write it as an operator class, because workers in
# other processes can receive that. They cannot receive the operator that `wrap_py` makes from a
# function in a script. The error of a measurement has two parts, with standard deviations of a
# tenth of the amount and of .003 grams.


# %%
class Solution(Op):
    """The concentrations at both stations, as an operator without a gradient."""

    __props__ = ()

    def make_node(self, *parameters):
        parameters = [pt.as_tensor_variable(p, dtype="float64") for p in parameters]
        return Apply(self, parameters, [pt.dmatrix()])

    def perform(self, node, parameters, outputs):
        outputs[0][0] = concentrations(*(float(p) for p in parameters))


def river():
    speed = pm.LogNormal("speed", np.log(1000), 0.3)
    return (
        speed,
        pm.LogNormal("spreading", np.log(2e4), 0.5),
        pm.LogNormal("decay", np.log(0.3), 0.5),
    )


with pm.Model() as model:
    amount = Solution()(*river())
    pm.Normal(
        "measured", amount, pt.sqrt((0.1 * amount) ** 2 + 0.003**2), observed=measured
    )

# %% [markdown]
# `pk.sample_surrogate` proposes a batch of points, sends them to the workers, learns from the
# values, and proposes the next batch. It stops when its estimated distance from the posterior is
# small enough. Each evaluation is saved in the store as soon as it ends. If this run is killed, the
# same call continues from there.

# %%
settings = {"random_seed": 1, "progressbar": False}
with model:
    few = pk.sample_surrogate(
        evaluations=250, executor=executor, store="river.zarr", batch_size=8, **settings
    )
print(az.summary(few))

# %% [markdown]
# The draws are from the surrogate, and the result says how far they are from the posterior.
# `distance` is the total variation distance between the joint distributions. It is estimated by
# comparing predicted with true values at draws not used for fitting. Here it is below one percent.

# %%
print(
    {
        name: round(float(few["sample_stats"][name].mean()), 3)
        for name in ("distance", "effective_share", "num_evaluations")
    }
)
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.semilogy(
    few["round_stats"]["num_evaluations"], few["round_stats"]["distance"], "o-"
)
axis.set(xlabel="evaluations", ylabel="distance from the posterior")
figure.savefig("error_by_evaluations.png", dpi=100)

# %% [markdown]
# The distance of each round is measured at its own new draws. It may rise again while the surrogate
# is still wrong in some places; here it falls from round to round. The search ends after two rounds
# below the tolerance, if chains from elsewhere agree with them.
#
# ## Simulations into a store
#
# Now the speed of the flow varies by a tenth from day to day, and its value on the day of the
# measurements is unknown. We want its mean. The likelihood of this model is hard to write down, but
# the model is easy to simulate. A simulator may fail; this one fails where the speed is negative.


# %%
def one_day(rng, speed, spreading, decay, size):
    speed, spreading, decay = (
        p.item() for p in (speed, spreading, decay)
    )  # they come with the axes of the data
    today = speed * (1.0 + 0.1 * rng.standard_normal())
    if today <= 0.0:
        raise ValueError("the river flows upstream")
    clean = concentrations(today, spreading, decay)
    return clean * np.exp(
        0.1 * rng.standard_normal(size)
    ) + 0.003 * rng.standard_normal(size)


with pm.Model() as daily:
    pm.Simulator("measured", one_day, *river(), observed=measured)
    start = time.perf_counter()
    sims = pk.simulate(
        3000,
        executor=executor,
        store="one_day.zarr",
        batch_size=20,
        timeout=60.0,
        **settings,
    )
print(f"{time.perf_counter() - start:.0f} s;", sims["simulation_stats"].attrs)

# %% [markdown]
# Each batch has its own seed, so the numbers are bit for bit the same with any workers. Asking for
# more simulations extends the store and repeats none.

# %%
with daily:
    start = time.perf_counter()
    more = pk.simulate(
        5000,
        executor=executor,
        store="one_day.zarr",
        batch_size=20,
        timeout=60.0,
        **settings,
    )
first = more["prior_predictive"]["measured"].isel(
    draw=slice(sims["prior"].sizes["draw"])
)
print(
    f"{time.perf_counter() - start:.0f} s; the first ones are the same:",
    first.equals(sims["prior_predictive"]["measured"]),
)

# %% [markdown]
# The stored simulations can be used with any method and any summary, on any machine that can read
# them.


# %%
def summaries(amounts):
    return np.arcsinh(
        amounts / 0.006
    ).ravel()  # a smooth logarithm that does not mind zero


with daily:
    by_rule = pk.sample_kbr(simulations=more, summary=summaries, **settings)
print(az.summary(by_rule))

# %% [markdown]
# The warning says that the rule has seen too few simulations: most simulations from the prior are
# far from the measurements. Two things help. Ask for more, since the store keeps those already
# made; or simulate where the posterior is. `pk.sample_likelihood_free` does the latter, in rounds,
# on the same workers and with a store of its own.

# %%
with daily:
    in_rounds = pk.sample_likelihood_free(
        num_simulations=5000,
        summary=summaries,
        executor=executor,
        store="rounds.zarr",
        **settings,
    )
print(az.summary(in_rounds))

# %% [markdown]
# There is no warning now: the same number of simulations says far more when they are made where the
# posterior is. Each chain comes from a fit to reweighted simulations, so R-hat and the effective
# sample sizes show how much uncertainty the simulations leave. It is largest for the speed. Take
# more simulations before you trust its tails.
#
# ## The answers
#
# In the second model the speed varies, so the posterior of its mean is wider. Black lines are the
# values that the data were simulated with.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
titles = {
    "speed": "speed, m an hour",
    "spreading": "spreading, m² an hour",
    "decay": "decay, share an hour",
}
answers = {
    "constant flow, surrogate": few,
    "varying flow, kernel Bayes' rule": by_rule,
    "varying flow, in rounds": in_rounds,
}
for axis, (name, title) in zip(axes, titles.items(), strict=True):
    for label, idata in answers.items():
        draws = idata["posterior"][name].values.ravel()
        axis.hist(draws, 40, density=True, histtype="step", linewidth=2, label=label)
    axis.axvline(truth[name], color="black")
    axis.set(xlabel=title, yticks=[])
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
figure.savefig("two_rivers.png", dpi=100)

# %%
client.close()
cluster.close()

# %% [markdown]
# ## From warning to fix
#
# - *The emulated model should not be trusted* of `pk.sample_surrogate`: use more evaluations with
#   the same store, or `exact=True`, which gives exact draws.
# - *Evaluations failed* or *timed out*: the first error is in the warning. `timeout` and `retries`
#   set how long to wait and how often to try again.
# - *A worker process died*: most often it ran out of memory. Use fewer workers, or a smaller
#   `batch_size`.
#
# ## When not
#
# Sending a draw to a worker costs a tenth of a millisecond, so a simulator that takes microseconds
# is faster in one process. A posterior with walls or kinks, or with modes far apart, needs more
# than a surrogate fitted to a few hundred values ([few
# evaluations](../docs/methods/sample_surrogate.rst)). If you can afford a thousand evaluations per
# chain, use `pk.KernelHMC`, which is exact.
