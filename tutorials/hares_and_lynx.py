# %% [markdown]
# # A black box: hares and lynx
#
# For twenty years a trading company counted the pelts of hares and of lynx. The Lotka-Volterra
# equations describe how populations of prey and predators drive each other:
#
#     hares' = (a - b lynx) hares
#     lynx'  = (-c + d hares) lynx
#
# A program solves them and gives no gradient, so NUTS cannot be used. Random walks hardly move,
# because the eight parameters are correlated. Here we sample the posterior with `pk.sample_khmc()`,
# and compare it with published reference draws that were made with a gradient
# ([posteriordb](https://github.com/stan-dev/posteriordb), `hudson_lynx_hare-lotka_volterra`).
#
# What you learn: how to put a black box into a model, what to look at after sampling, and how to
# check draws of a model without a gradient.

# %%
import json
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numba
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor import wrap_py

import pymc_kernel as pk

# %% [markdown]
# ## The data
#
# The data are in this repository, with means, standard deviations and quantiles of posteriordb's
# 10,000 reference draws (BSD 3-clause license).

# %%
root = Path(__file__).resolve().parent.parent
stored = json.loads((root / "benchmarks/posteriors/zoo_reference.json").read_text())
stored = stored["posteriors"]["hudson_lynx_hare-lotka_volterra"]
data = {name: np.array(values, dtype=float) for name, values in stored["data"].items()}
years = np.concatenate([[0.0], data["ts"]])
pelts = np.vstack([data["y_init"], data["y"]])  # thousands of hares, of lynx

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
for k, (animal, marker) in enumerate((("hares", "o-"), ("lynx", "s--"))):
    axis.plot(1900 + years, pelts[:, k], marker, label=animal)
axis.set(xlabel="year", ylabel="pelts, thousands", xticks=range(1900, 1921, 5))
axis.legend(frameon=False)
figure.savefig("hares_and_lynx_data.png", dpi=100)

# %% [markdown]
# ## The black box
#
# Here it is a fourth-order Runge-Kutta method, compiled by Numba, on the logarithms of both
# populations. Any function of arrays would do: a SciPy solver, or a call of an external program.
# `wrap_py` turns it into an operator that PyMC can use in a model. Populations are capped at
# exp(50), so that extreme proposals give a low density rather than an error.


# %%
@numba.njit
def slopes(logs, a, b, c, d):
    hares, lynx = np.exp(np.minimum(logs, 50.0))
    return np.array([a - b * lynx, -c + d * hares])


@numba.njit
def solve(rates, start, num_years, steps_a_year=40):
    a, b, c, d = rates
    h = 1.0 / steps_a_year
    logs = np.log(start)
    solution = np.empty((num_years, 2))
    for year in range(num_years):
        for _ in range(steps_a_year):
            k1 = slopes(logs, a, b, c, d)
            k2 = slopes(logs + 0.5 * h * k1, a, b, c, d)
            k3 = slopes(logs + 0.5 * h * k2, a, b, c, d)
            k4 = slopes(logs + h * k3, a, b, c, d)
            logs = logs + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        solution[year] = logs
    return solution


@wrap_py([pt.dvector, pt.dvector], [pt.dmatrix])
def log_numbers(rates, start):
    return solve(rates, start, data["ts"].size)


# %% [markdown]
# ## The model
#
# The model is posteriordb's. Its priors put the rates near one and near .05, and the initial
# populations near ten thousand. Each count is off by a random factor whose logarithm has the
# standard deviation sigma.

# %%
coords = {
    "rate": [
        "hares: births",
        "hares: deaths by a lynx",
        "lynx: deaths",
        "lynx: births by a hare",
    ],
    "animal": ["hares", "lynx"],
}
with pm.Model(coords=coords) as model:
    usual, sd = [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05]
    theta = pm.TruncatedNormal("theta", usual, sd, lower=0, dims="rate")
    z_init = pm.LogNormal("z_init", np.log(10), 1, dims="animal")
    sigma = pm.LogNormal("sigma", -1, 1, dims="animal")
    pm.LogNormal("first", pt.log(z_init), sigma, observed=data["y_init"])
    pm.LogNormal("later", log_numbers(theta, z_init), sigma, observed=data["y"])

# %% [markdown]
# ## Sampling
#
# `pk.sample_khmc()` learns a surrogate of the log density from all chains while they tune, and
# makes its proposals with the surrogate. Chains start at draws from the prior, and most of their
# first points are far from the posterior, so tuning takes four thousand draws. With one thousand, a
# warning says that part of the posterior may be missing. Each draw costs one solution of the
# equations.

# %%
with model:
    idata = pk.sample_khmc(
        draws=4000,
        tune=4000,
        chains=4,
        random_seed=2,
        progressbar=False,
    )
print(az.summary(idata, kind="diagnostics"))

# %% [markdown]
# R-hat is one, and the effective sample sizes are about half the number of draws. The sample
# statistics give the number of evaluations after tuning and the acceptance rate.

# %%
stats = idata["sample_stats"]
print(
    "evaluations:",
    int(stats["evaluations"].sum()),
    "accepted:",
    float(stats["moved"].mean()),
)
print("evaluations while tuning:", stats.attrs["tuning_evaluations"])

# %% [markdown]
# ## Against the reference
#
# The output shows differences of means in reference standard deviations, and ratios of standard
# deviations. With seven thousand effective draws, a mean is known to within .03 standard
# deviations, and a standard deviation to within 2 %.

# %%
columns = ["mean", "sd", "5 %", "25 %", "50 %", "75 %", "95 %"]
for name in stored["reference"]:
    variable, index = name.rstrip("]").split("[")
    draws = idata["posterior"][variable].values[..., int(index) - 1].ravel()
    reference = dict(zip(columns, stored["reference"][name], strict=True))
    off = (draws.mean() - reference["mean"]) / reference["sd"]
    print(
        f"{name:10s} mean off by {off:+.2f} sd, "
        f"sd ratio {draws.std() / reference['sd']:.2f}"
    )

# %% [markdown]
# The picture shows the densities of the draws. Black lines are the 5 %, 50 % and 95 % quantiles of
# the reference.

# %%
quantiles = ["5 %", "50 %", "95 %"]
kept = pd.DataFrame(stored["reference"], columns).loc[quantiles].T.to_numpy()  # (8, 3)
lines = xr.Dataset(
    {
        "theta": (("rate", "ref_dim"), kept[:4]),
        "z_init": (("animal", "ref_dim"), kept[4:6]),
        "sigma": (("animal", "ref_dim"), kept[6:]),
    },
    coords=coords | {"ref_dim": quantiles},
)
off = {
    "credible_interval": False,
    "point_estimate": False,
    "point_estimate_text": False,
}
names = {"theta": "rate", "z_init": "thousands in 1900", "sigma": "sd of a log count"}
picture = az.plot_dist(
    idata,
    labeller=az.labels.MapLabeller(var_name_map=names),
    backend="matplotlib",
    visuals=off,
    cols=["__variable__", "rate", "animal"],
    col_wrap=4,
    figure_kwargs={"figsize": (10, 4.5), "layout": "constrained"},
)
az.add_lines(picture, lines, visuals={"ref_line": {"color": "black"}})
picture.savefig("hares_and_lynx_reference.png", dpi=100)

# %% [markdown]
# ## What the posterior says
#
# Each line is the solution of the equations at one draw.

# %%
rng = np.random.default_rng(1)
stacked = idata["posterior"].to_dataset().stack(sample=("chain", "draw"))
figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
for sample in rng.choice(stacked.sizes["sample"], 40, replace=False):
    draw = stacked.isel(sample=sample)
    path = np.exp(solve(draw["theta"].values, draw["z_init"].values, data["ts"].size))
    path = np.vstack([draw["z_init"].values, path])
    for k, color in enumerate(("C0", "C1")):
        axis.plot(1900 + years, path[:, k], color=color, alpha=0.15, linewidth=1)
for k, (animal, color, marker) in enumerate(
    (("hares", "C0", "o"), ("lynx", "C1", "s"))
):
    axis.plot(
        1900 + years,
        pelts[:, k],
        marker,
        color=color,
        markeredgecolor="black",
        label=animal,
    )
axis.set(xlabel="year", ylabel="pelts, thousands", xticks=range(1900, 1921, 5))
axis.legend(frameon=False)
figure.savefig("hares_and_lynx_series.png", dpi=100)

# %% [markdown]
# ## Can the draws be trusted?
#
# The chains agree, but that is not enough. `pk.ksd_test` compares draws with the gradient of the
# model's log density, and this model has no gradient. With `score="surrogate"` the gradient is
# learned from the log densities of the draws themselves, and the report says whether it was learned
# well enough for the test.

# %%
report = pk.ksd_test(idata, model=model, score="surrogate", random_seed=1)
print(report)

# %% [markdown]
# ## From warning to fix
#
# - *R-hat above 1.01*, or *... are likely to be missing from the draws*: tune longer (`tune=8000`),
#   or start nearer to the posterior (`initvals`). If the warning stays, look at a pair plot: a thin
#   ridge needs another parametrization.
# - *A chain has rejected ... proposals in a row*: it is stuck at a point where the likelihood is
#   far too high, often because a solver failed there and returned numbers anyway. Let the solver
#   raise an error, or return `nan`.
#
# ## When not
#
# With a solver that takes a second, these draws would take nine hours: see [few
# evaluations](../docs/methods/sample_surrogate.rst) and [emulate](../docs/methods/emulate.rst). A
# solver that takes microseconds, like this one, is fast enough for a random walk, too. But four
# random walks of 1,000 draws did not find the posterior (`python -m benchmarks.zoo`: R-hat 1.7 and
# more). If you can write the equations with a gradient, NUTS needs no surrogate.
