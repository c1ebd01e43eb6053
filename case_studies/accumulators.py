# %% [markdown]
# # Somebody else's simulators: evidence that jumps, and evidence that drifts
#
# The package ssm-simulators has 115 models of decisions, from which others train neural networks. For most of them no
# likelihood is known: in the Lévy model evidence does not only diffuse to a bound, but jumps, since its noise has heavy
# tails of index alpha between one and two (Voss et al. 2019). In the plain diffusion model it does not jump, and the
# density is a series (Navarro and Fuss 2009), so that the answer can be checked.
#
# Ten people decide two hundred times each. From both models a likelihood of a person's summaries is learned once, and
# is then a term with gradients in a hierarchy that NUTS samples. The plain model is compared with NUTS on the exact
# density of all trials; the Lévy model with the parameters that the data were simulated with, and with a likelihood
# learned from other simulations. The package comes with `pip install -e '.[simulators]'`.

# %%
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kernel as pk
from benchmarks import harness
from case_studies.reaction_times import log_density

HERE = Path(__file__).parent
PEOPLE, TRIALS, SIMULATED = 10, 200, 20_000
# Of a person: drift, log of the bound (half of what lies between both), log of the delay, and for the Lévy model the
# log odds of alpha - 1. Centers and spreads of the population, and how much wider the simulated people are.
NAMES = {"ddm": ["drift", "log bound", "log delay"], "levy": ["drift", "log bound", "log delay", "jumps"]}
CENTER, SPREAD = np.array([1.0, 0.0, -1.2, 0.4]), np.array([0.5, 0.15, 0.15, 0.5])
WIDER = 2.5
# The package simulates in steps of a millisecond. A walk in steps passes a bound by .583 of the root of a step, as if
# the bound were so much further out (Siegmund 1979).
OVERSHOOT = 0.583 * np.sqrt(1e-3)
HEADER = ("model", "parameter", "intervals of 90 % with the truth", "off", "width", "by two learned likelihoods")


# %%
def simulate(model, parameters, seed):
    """Return signed reaction times (n, TRIALS) by a model of the package, of people with parameters (n, k)."""
    try:
        from ssms.basic_simulators.simulator import simulator
    except ImportError:
        raise SystemExit("this study needs ssm-simulators: pip install -e '.[simulators]'") from None

    drift, bound, delay = parameters[:, 0], np.exp(parameters[:, 1]), np.exp(parameters[:, 2])
    columns = [drift, bound, np.full(len(parameters), 0.5)]
    if model == "levy":
        columns.append(1.0 + 1.0 / (1.0 + np.exp(-parameters[:, 3])))
    theta = np.column_stack([*columns, delay])
    made = simulator(theta=theta, model=model, n_samples=TRIALS, random_state=seed)
    return (made["rts"] * made["choices"])[:, :, 0].T


def summaries(times):
    """Return nine numbers of each person (n, 9): the log odds of the upper answer, and how the times are spread."""
    upper, size = (times > 0.0).sum(axis=1), np.abs(times)
    odds = np.log((upper + 0.5) / (times.shape[1] - upper + 0.5))
    quantiles = np.log(np.quantile(size, [0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9], axis=1).T)
    return np.column_stack([odds, quantiles, np.log(size.mean(axis=1))])


def learn(model, num_simulated, seed):
    """Return the likelihood of a person's summaries, learned from simulated people, with these: (parameters, found)."""
    rng, k = np.random.default_rng(seed), len(NAMES[model])
    parameters = CENTER[:k] + WIDER * SPREAD[:k] * rng.standard_normal((num_simulated, k))
    found = summaries(simulate(model, parameters, seed))
    return pk.likelihood_free.LearnedLikelihood().fit(parameters, found, rng), (parameters, found)


def people(model):
    """Add the population to the model in context; return the parameters (people, k)."""
    k = len(NAMES[model])
    center = pm.Normal("center", CENTER[:k], 2.0 * SPREAD[:k], dims="parameter")
    spread = pm.HalfNormal("spread", 2.0 * SPREAD[:k], dims="parameter")
    offset = pm.Normal("offset", dims=("person", "parameter"))
    return pm.Deterministic("own", center + spread * offset, dims=("person", "parameter"))


def learned_model(model, times, learned):
    """Return the hierarchy with a learned likelihood."""
    with pm.Model(coords={"person": range(len(times)), "parameter": NAMES[model]}) as hierarchy:
        pk.LearnedLikelihood("summaries", learned, people(model), observed=summaries(times))
    return hierarchy


def exact_model(times):
    """Return the hierarchy of the plain model with the density of all trials."""
    with pm.Model(coords={"person": range(len(times)), "parameter": NAMES["ddm"]}) as hierarchy:
        own = people("ddm")
        # That density is of bounds whose distance, not half of it, is the parameter.
        bounds = pt.log(2.0 * (pt.exp(own[:, 1, None]) + OVERSHOOT))
        columns = [own[:, 0, None], bounds, own[:, 2, None]]
        pm.CustomDist("times", *columns, logp=log_density, observed=times)
    return hierarchy


def most_alike(simulated, times):
    """Return of each person the parameters (people, k) of the simulated one whose summaries are the most alike."""
    parameters, found = simulated
    apart = (summaries(times)[:, None] - found) / found.std(axis=0)
    return parameters[(apart**2).sum(axis=2).argmin(axis=1)]


def sample(hierarchy, own, quick, seed):
    """Return draws by NUTS, which begins where people have the parameters ``own`` (people, k).

    A person who mostly gives the lower answer is far from the center of the population: from there a chain can end in a
    place that explains that answer by chance, and stay.
    """
    k = own.shape[1]
    length = {"draws": 100, "tune": 200} if quick else {"draws": 300, "tune": 300}
    start = {"center": CENTER[:k], "spread": SPREAD[:k], "offset": (own - CENTER[:k]) / SPREAD[:k]}
    settings = {"init": "adapt_diag", "chains": 2, "target_accept": 0.95, "progressbar": False}
    return pm.sample(**length, model=hierarchy, initvals=start, random_seed=seed, **settings)


def own_draws(idata):
    """Return the draws (n, people, k) of the people's parameters."""
    own = idata["posterior"]["own"].values
    return own.reshape(-1, *own.shape[2:])


def compared(one, other):
    """Return of each parameter how far means are off in standard deviations (root mean square), and ratios of these."""
    one, other = own_draws(one), own_draws(other)
    off = (one.mean(axis=0) - other.mean(axis=0)) / other.std(axis=0)
    return np.sqrt((off**2).mean(axis=0)), (one.std(axis=0) / other.std(axis=0)).mean(axis=0)


def picture(truth, runs):
    """Draw the people's intervals of 90 %, and the truth."""
    figure, axes = plt.subplots(1, 7, figsize=(12, 3), sharey=True, layout="constrained")
    panels = [(model, i) for model in NAMES for i in range(len(NAMES[model]))]
    for axis, (model, i) in zip(axes, panels, strict=True):
        for color, shift, idata in zip(("C1", "C0"), (0.15, -0.15), runs[model], strict=False):
            low, high = np.quantile(own_draws(idata)[:, :, i], [0.05, 0.95], axis=0)
            axis.hlines(np.arange(PEOPLE) + shift, low, high, color=color, linewidth=2)
        axis.plot(truth[model][:, i], np.arange(PEOPLE), "x", color="black", markersize=4)
        axis.set(xlabel=NAMES[model][i], yticks=[], title="diffusion" if model == "ddm" else "Lévy")
    axes[0].set_ylabel("people")
    lines = [plt.Line2D([], [], color=color, linewidth=2) for color in ("C1", "C0")]
    figure.legend(lines, ["learned", "exact, all trials"], loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(HERE / "figures" / "accumulators.png", dpi=100)
    plt.close(figure)


def main(quick=False):
    """Sample both models, write the table and the picture; ``quick`` takes few draws and writes nothing."""
    rng, num_simulated = np.random.default_rng(1), 400 if quick else SIMULATED
    truth, runs, rows, seconds = {}, {}, [], {}
    for model, names in NAMES.items():
        k = len(names)
        truth[model] = CENTER[:k] + SPREAD[:k] * rng.standard_normal((PEOPLE, k))
        times = simulate(model, truth[model], 7)
        begun = time.perf_counter()
        first, simulated = learn(model, num_simulated, 1)
        own = most_alike(simulated, times)
        learned = sample(learned_model(model, times, first), own, quick, 1)
        seconds[model] = time.perf_counter() - begun
        again = sample(learned_model(model, times, learn(model, num_simulated, 2)[0]), own, quick, 2)
        runs[model] = [learned]
        off = width = [""] * k
        if model == "ddm":
            own[:, 2] = np.log(np.abs(times).min(axis=1)) - 0.3  # before the first answer, or there is no density
            runs[model].append(sample(exact_model(times), own, quick, 3))
            off, width = ([f"{x:.2f}" for x in values] for values in compared(*runs[model]))
        low, high = np.quantile(own_draws(learned), [0.05, 0.95], axis=0)
        inside = ((low < truth[model]) & (truth[model] < high)).sum(axis=0)
        shift, _ = compared(learned, again)
        rows += [[model, names[i], f"{inside[i]} of {PEOPLE}", off[i], width[i], f"{shift[i]:.2f}"] for i in range(k)]
    print(*rows, sep="\n")
    if quick:
        return
    note = (
        f"{PEOPLE} people, {TRIALS} decisions each; likelihoods learned from {SIMULATED:,} simulated people. Off: root "
        "mean square over people of the difference of posterior means, in standard deviations of the exact posterior; "
        "width: of the posterior, as a multiple of the exact one; last column: off, between two learned likelihoods. "
        f"Seconds to simulate, learn and sample: {seconds['ddm']:.0f} and {seconds['levy']:.0f}."
    )
    harness.Table("accumulators", HEADER).write(rows, note)
    picture(truth, runs)


# %%
if __name__ == "__main__":
    harness.run(main)
