# %% [markdown]
# # Reaction times: a simulator learned once, for twenty subjects at once
#
# Someone decides between two answers while evidence piles up: it drifts by `v` a second, with unit noise, from the
# middle between two bounds that are `a` apart; where it arrives first is the answer, and the reaction time is the time
# it took, and `t0` seconds more for seeing and for pressing a key (Ratcliff 1978). Each of twenty subjects decides a
# hundred times, and subjects differ.
#
# Most models of this kind (with leaks, changing bounds, urgency) can only be simulated. This one has a density
# (Navarro and Fuss 2009), so the answer can be checked: the exact posterior by NUTS on all 2,000 trials, and the one
# of `pk.LearnedLikelihood`, which has never seen the density. It was learned from simulated subjects, each by eight
# numbers; it is a formula with gradients, so the hierarchy around it is a PyMC model like any other, and NUTS samples
# it. The simulations are made once: they serve any number of subjects, and any prior.

# %%
import math
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kernel as pk
from benchmarks import harness, measures

HERE = Path(__file__).parent
NUM_SUBJECTS, NUM_TRIALS = 20, 100
NAMES = ["drift", "log bounds", "log delay"]
CENTERS = np.array([1.5, math.log(1.5), math.log(0.3)])  # of the population that the data are simulated from
SPREADS = np.array([0.5, 0.15, 0.15])
STEP = 2e-3  # seconds; between steps the path is a Brownian bridge, whose crossing is drawn exactly
LONGEST = 20.0  # seconds, by when a decision is made


# %% [markdown]
# ## The simulator and what it says of a subject


# %%
@numba.njit(cache=True)
def decide(rng, v, a, t0):
    """Return the reaction time of one decision, above zero for the upper bound, below for the lower one."""
    position, sd = 0.5 * a, math.sqrt(STEP)
    for i in range(int(LONGEST / STEP)):
        following = position + v * STEP + sd * rng.standard_normal()
        for sign, here, there in ((1.0, a - position, a - following), (-1.0, position, following)):
            crossed = there <= 0.0 or rng.random() < math.exp(-2.0 * here * there / STEP)
            if crossed:
                return sign * (t0 + (i + rng.random()) * STEP)
        position = following
    return t0 + LONGEST


@numba.njit(cache=True)
def decide_many(rng, parameters, out):
    """Fill ``out`` (n, trials) with signed reaction times at parameters (n, 3)."""
    for i in range(len(parameters)):
        for j in range(out.shape[1]):
            out[i, j] = decide(rng, parameters[i, 0], math.exp(parameters[i, 1]), math.exp(parameters[i, 2]))


def simulate(rng, parameters):
    """Return signed reaction times (n, trials) of subjects with these parameters (n, 3)."""
    out = np.empty((len(parameters), NUM_TRIALS))
    decide_many(rng, np.ascontiguousarray(parameters, dtype=float), out)
    return out


def summaries(times):
    """Return eight numbers of each subject (n, 8): the log odds of the upper answer, and how the times are spread.

    With both bounds equally far, times do not tell which answer was given, so their distribution is taken as a whole.
    """
    upper = (times > 0.0).sum(axis=1)
    size = np.sort(np.abs(times), axis=1)
    fastest = np.log(size[:, 0])
    quantiles = np.log(np.quantile(size, [0.05, 0.15, 0.35, 0.6, 0.85], axis=1).T)
    odds = np.log((upper + 0.5) / (NUM_TRIALS - upper + 0.5))
    return np.column_stack([odds, fastest, quantiles, np.log(size.mean(axis=1))])


# %% [markdown]
# ## The exact density of a reaction time
#
# A series that converges fast for short times, and another one for long ones; both are of the time in units of a².


# %%
def log_density(times, v, log_a, log_t0):
    """Return log densities of signed reaction times, as a graph."""
    a, time = pt.exp(log_a), pt.abs(times) - pt.exp(log_t0)
    is_late = time > 0.0
    time = pt.switch(is_late, time, 1.0)
    unit = time / a**2
    k = np.arange(-4, 5.0)
    short = ((0.5 + 2.0 * k) * pt.exp(-((0.5 + 2.0 * k) ** 2) / (2.0 * unit[..., None]))).sum(axis=-1)
    short = short / pt.sqrt(2.0 * np.pi * unit**3)
    k = np.arange(1, 10.0)
    long = (k * pt.exp(-((k * np.pi) ** 2) * unit[..., None] / 2.0) * np.sin(0.5 * np.pi * k)).sum(axis=-1) * np.pi
    first = pt.log(pt.switch(unit < 0.5, short, long)) - 2.0 * pt.log(a)
    drifting = pt.sign(times) * v * a * 0.5 - 0.5 * v**2 * time
    return pt.switch(is_late, first + drifting, -np.inf)


# %% [markdown]
# ## Two models that differ in one line


# %%
def subjects():
    """Add the hierarchy to the model in context; return the parameters (subjects, 3)."""
    center = pm.Normal("center", CENTERS, [1.0, 0.5, 0.5], dims="parameter")
    spread = pm.HalfNormal("spread", [1.0, 0.3, 0.3], dims="parameter")
    offset = pm.Normal("offset", 0.0, 1.0, dims=("subject", "parameter"))
    return pm.Deterministic("subject_parameters", center + spread * offset, dims=("subject", "parameter"))


def exact_model(times):
    """Return the model of all trials by their density."""
    with pm.Model(coords={"parameter": NAMES, "subject": range(len(times))}) as model:
        parameters = subjects()
        columns = [parameters[:, i, None] for i in range(3)]
        pm.CustomDist("times", *columns, logp=log_density, observed=times)
    return model


def learned_model(times, learned):
    """Return the same with what was learned from simulations."""
    with pm.Model(coords={"parameter": NAMES, "subject": range(len(times))}) as model:
        pk.LearnedLikelihood("summaries", learned, subjects(), observed=summaries(times))
    return model


def learn(num_simulations, rng):
    """Return the learned likelihood: subjects from a wide distribution, each with a hundred decisions."""
    parameters = CENTERS + np.array([1.0, 0.35, 0.35]) * rng.standard_normal((num_simulations, 3))
    return pk.likelihood_free.LearnedLikelihood().fit(parameters, summaries(simulate(rng, parameters)), rng)


def sample(model, quick):
    """Return draws by NUTS."""
    draws = {"draws": 200, "tune": 200} if quick else {"draws": 1000, "tune": 1000}
    # Delays must be shorter than the fastest reaction.
    start = {"center": CENTERS - np.array([0.0, 0.0, 1.0]), "offset": np.zeros((NUM_SUBJECTS, 3))}
    settings = {"init": "adapt_diag", "chains": 2, "random_seed": 1, "progressbar": False}
    return pm.sample(**draws, model=model, initvals=start, **settings)


# %%
HEADER = ("quantity", "exact", "learned", "off", "width")


def rows_of(exact, learned):
    """Return rows: each population parameter, then root mean squares over the subjects."""
    rows = []
    for name in ("center", "spread"):
        for parameter in NAMES:
            ours, theirs = (idata["posterior"][name].sel(parameter=parameter).values for idata in (learned, exact))
            off = (ours.mean() - theirs.mean()) / theirs.std()
            cells = [f"{x.mean():.3f} ({x.std():.3f})" for x in (theirs, ours)]
            rows.append([f"{name} of {parameter}", *cells, f"{off:.2f}", f"{ours.std() / theirs.std():.2f}"])
    for i, parameter in enumerate(NAMES):
        ours, theirs = (
            i_["posterior"]["subject_parameters"].values[..., i].reshape(-1, NUM_SUBJECTS) for i_ in (learned, exact)
        )
        off = (ours.mean(axis=0) - theirs.mean(axis=0)) / theirs.std(axis=0)
        width = (ours.std(axis=0) / theirs.std(axis=0)).mean()
        rows.append([f"{parameter} of subjects", "", "", f"{np.sqrt((off**2).mean()):.2f}", f"{width:.2f}"])
    return rows


def picture(exact, learned):
    """Draw the subjects' posteriors, exact and learned."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    for i, (axis, name) in enumerate(zip(axes, NAMES, strict=True)):
        for idata, shift, color, label in (
            (exact, -0.15, "C0", "exact, all trials"),
            (learned, 0.15, "C1", "learned, by eight summaries"),
        ):
            draws = idata["posterior"]["subject_parameters"].values[..., i].reshape(-1, NUM_SUBJECTS)
            low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
            at = np.arange(NUM_SUBJECTS) + shift
            axis.errorbar(middle, at, xerr=[middle - low, high - middle], fmt=".", color=color, label=label)
        axis.set(xlabel=name, ylabel="subjects" if i == 0 else "", yticks=[])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    figure.savefig(HERE / "figures" / "reaction_times.png", dpi=100)
    plt.close(figure)


def main(quick=False):
    """Sample both models, write the table and the picture; ``quick`` takes few draws and writes nothing."""
    rng = np.random.default_rng(1)
    truth = CENTERS + SPREADS * rng.standard_normal((NUM_SUBJECTS, 3))
    times = simulate(rng, truth)
    exact, exact_seconds = measures.timed(sample, exact_model(times), quick)
    learned, learn_seconds = measures.timed(learn, 1000 if quick else 5000, rng)
    ours, seconds = measures.timed(sample, learned_model(times, learned), quick)
    rows = rows_of(exact, ours)
    print(*rows, sep="\n")
    print(az.summary(ours, var_names=["center", "spread"]))
    if quick:
        return
    note = (
        f"{NUM_SUBJECTS} subjects, {NUM_TRIALS} decisions each. Posterior means, in brackets standard deviations; off: "
        "difference of the means in exact standard deviations (of subjects: root mean square); width: of the "
        f"posterior, as a multiple of the exact one. Seconds: exact {exact_seconds:.0f}; simulating and learning "
        f"{learn_seconds:.0f}, NUTS {seconds:.0f}."
    )
    harness.Table("reaction-times", HEADER).write(rows, note)
    picture(exact, ours)


# %%
if __name__ == "__main__":
    harness.run(main)
