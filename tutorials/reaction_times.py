# %% [markdown]
# # A simulator learned once: reaction times of ten people
#
# Someone sees dots move and says "left" or "right". In the model, evidence accumulates until it
# reaches one of two bounds. The bound that it reaches is the answer. The reaction time is the time
# to reach it, plus a delay for seeing and for pressing a key. People get impatient, so the bounds
# move together as time passes. A simulator takes five lines, and no formula is known for the
# likelihood.
#
# Ten people with three parameters each, and the population that they come from, make 36 parameters.
# Simulating all of this for each draw would take millions of simulations. But the only unknown part
# is one person's likelihood, a function of three parameters. It is learned once, from simulated
# people. It then becomes a term with gradients in the model, and PyMC's NUTS does the rest.
#
# What you learn: how to learn a likelihood from simulations, how to use it in a hierarchy, and how
# to check that the posterior fits the data.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm

import pymc_kernel as pk

PEOPLE, TRIALS = 10, 150
NAMES = ["drift", "log bound", "log delay"]
rng = np.random.default_rng(1)

# %% [markdown]
# ## The simulator
#
# `drift` is the mean evidence per second, with unit noise. The bounds start at plus and minus
# `bound`, and have halved after two seconds. A positive time means a correct answer.

# %%
STEP = 0.002  # seconds


@numba.njit
def decide(rng, drift, log_bound, log_delay, out):
    for i in range(len(out)):
        evidence, time = 0.0, 0.0
        while True:
            bound = np.exp(log_bound) / (1.0 + 0.5 * time)
            if abs(evidence) >= bound:
                break
            evidence += drift * STEP + np.sqrt(STEP) * rng.standard_normal()
            time += STEP
        out[i] = np.sign(evidence) * (time + np.exp(log_delay))


def simulate(rng, parameters):
    """Return signed reaction times (n, TRIALS) of people with parameters (n, 3)."""
    times = np.empty((len(parameters), TRIALS))
    for row, out in zip(parameters, times, strict=True):
        decide(rng, *row, out)
    return times


# %% [markdown]
# ## The data
#
# We simulate ten people, so we know their parameters and can judge the posterior. Bars above the
# axis are correct answers, bars below it are wrong ones.

# %%
center, spread = np.array([1.2, 0.1, -1.2]), np.array([0.5, 0.15, 0.2])
truth = center + spread * rng.standard_normal((PEOPLE, 3))
times = simulate(rng, truth)


BINS = np.linspace(0.0, 2.5, 26)


def shares(own):
    correct, wrong = (
        np.histogram(sign * own[sign * own > 0.0], BINS)[0] for sign in (1.0, -1.0)
    )
    return np.array([correct, -wrong]) / own.size


def histograms(axes, times, **style):
    for axis, own in zip(axes.ravel(), times, strict=True):
        for heights in shares(own):
            axis.stairs(heights, BINS, **style)
        axis.axhline(0.0, color="black", linewidth=0.5)


figure, axes = plt.subplots(
    2, 5, figsize=(10, 3.6), sharex=True, sharey=True, layout="constrained"
)
histograms(axes, times, fill=True, color="0.7")
figure.supxlabel("reaction time, seconds")
figure.supylabel("share of the trials")
figure.savefig("times.png", dpi=100)

# %% [markdown]
# ## Summaries
#
# A learned likelihood needs a few numbers for each person that carry all the relevant information.
# Here they are the log odds of a correct answer, the logarithms of six quantiles of the times, and
# the log of their mean.

# %%


def summaries(times):
    right = (times > 0.0).sum(axis=1)
    size = np.abs(times)
    odds = np.log((right + 0.5) / (TRIALS - right + 0.5))
    quantiles = np.log(np.quantile(size, [0.0, 0.1, 0.3, 0.5, 0.7, 0.9], axis=1).T)
    return np.column_stack([odds, quantiles, np.log(size.mean(axis=1))])


# %% [markdown]
# ## Learning
#
# All people have equally many trials here. With unequal numbers, simulate numbers like those of
# the data and give their logarithm to the learner as one more parameter, which the model then
# knows.
#
# Five thousand people are simulated from a distribution that is wider than the population: the
# posterior must lie inside it. `LearnedLikelihood` learns how the mean and the spread of the
# summaries depend on the parameters.

# %%
SIMULATED = 5000  # people


def learn(rng):
    parameters = [1.2, 0.1, -1.2] + np.array([1.2, 0.5, 0.5]) * rng.standard_normal(
        (SIMULATED, 3)
    )
    return pk.likelihood_free.LearnedLikelihood().fit(
        parameters, summaries(simulate(rng, parameters)), rng
    )


learned = learn(rng)

# %% [markdown]
# ## The hierarchy
#
# This is an ordinary PyMC model. Its term `pk.LearnedLikelihood`, not to be taken for the learner
# above, takes a row of parameters for each person.

# %%
settings = {"target_accept": 0.95, "progressbar": False}


def hierarchy(learned):
    with pm.Model(coords={"person": range(PEOPLE), "parameter": NAMES}) as model:
        middle = pm.Normal(
            "middle", [1.0, 0.0, -1.0], [1.0, 0.5, 0.5], dims="parameter"
        )
        between = pm.HalfNormal("between", [1.0, 0.3, 0.3], dims="parameter")
        offset = pm.Normal("offset", dims=("person", "parameter"))
        own = pm.Deterministic(
            "own", middle + between * offset, dims=("person", "parameter")
        )
        pk.LearnedLikelihood("summaries", learned, own, observed=summaries(times))
    return model


with hierarchy(learned):
    idata = pm.sample(random_seed=1, **settings)
print(az.summary(idata, var_names=["middle", "between"]))

# %% [markdown]
# ## Are the people found?
#
# The true parameters are known here; crosses mark them. Of thirty 90 % intervals, about 27 should
# contain the truth.

# %%
draws = idata["posterior"]["own"].values.reshape(-1, PEOPLE, 3)
low, high = np.quantile(draws, [0.05, 0.95], axis=0)
print(
    "intervals of 90 % that hold the truth:",
    ((low < truth) & (truth < high)).sum(),
    "of 30",
)
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
for k, (axis, name) in enumerate(zip(axes, NAMES, strict=True)):
    axis.hlines(np.arange(PEOPLE), low[:, k], high[:, k], linewidth=3, alpha=0.6)
    axis.plot(truth[:, k], np.arange(PEOPLE), "x", color="black")
    axis.set(xlabel=name, yticks=range(PEOPLE))
axes[0].set_ylabel("person")
figure.savefig("people.png", dpi=100)

# %% [markdown]
# With your own data the truth is unknown. Two checks are left. First, do people simulated at draws
# from the posterior look like the data? In each bin the orange band holds 90 % of two hundred such
# people; the black lines are the data.

# %%
some = rng.choice(len(draws), 200, replace=False)
predicted = np.array(
    [[shares(own) for own in simulate(rng, draws[draw])] for draw in some]
)
lows, highs = np.quantile(predicted, [0.05, 0.95], axis=0)
figure, axes = plt.subplots(
    2, 5, figsize=(10, 3.6), sharex=True, sharey=True, layout="constrained"
)
for axis, low, high in zip(axes.ravel(), lows, highs, strict=True):
    for k in range(2):
        axis.stairs(high[k], BINS, baseline=low[k], fill=True, color="C1", alpha=0.4)
histograms(axes, times, color="black")
figure.supxlabel("reaction time, seconds")
figure.supylabel("share of the trials")
figure.savefig("predicted_times.png", dpi=100)

# %% [markdown]
# Second, does a likelihood learned from other simulations give the same answer?

# %%
with hierarchy(learn(rng)):
    other = pm.sample(random_seed=2, **settings)
for name in ("middle", "between"):
    one, two = (tree["posterior"][name] for tree in (idata, other))
    off = (one.mean(("chain", "draw")) - two.mean(("chain", "draw"))) / two.std(
        ("chain", "draw")
    )
    print(f"{name}: means differ by {off.values.round(2)} sd")

# %% [markdown]
# The means agree to within a fifth of a standard deviation, except for the delay, where they differ
# by .2 and .4. The delay depends on the fastest of 150 times. More simulations would bring the two
# answers together.
#
# ## From warning to fix
#
# - *Rows are data as fewer than 1 % of the simulations have them*: somebody in the data is unlike
#   all simulated people. Simulate from a wider distribution, or check the data.
# - *Divergences* of NUTS: a small `between` makes a funnel. Set `target_accept=0.99`, or give
#   `between` a better prior.
# - *The two answers differ*: use more simulations. The error falls as their number grows, and the
#   hierarchy takes no longer to sample.
#
# ## When not
#
# If the likelihood has a formula, as it does without the impatience, use the formula
# (`python -m case_studies.reaction_times` compares both). For one data set and few parameters, use
# `pk.sample_likelihood_free`: it simulates where the posterior is, and needs far fewer simulations
# ([learned likelihoods](../docs/methods/learned_likelihood.rst)).
