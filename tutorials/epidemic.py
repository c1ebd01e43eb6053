# %% [markdown]
# # A simulator with summaries: an epidemic
#
# In a village of 400 people, five fall ill, then others. Infected people infect others at an
# unknown rate. Only a share of the infected is reported each day, and this share is unknown, too.
# Simulating this takes five lines. The likelihood of the reported numbers is a sum over all
# possible courses of the infection.
#
# Three methods find the posterior from simulations alone: `pk.KernelABC`, which compares summaries
# under a kernel; `pk.sample_kbr`, kernel Bayes' rule, which learns the parameters as a function of
# the data; and `pk.sample_likelihood_free`, which learns the likelihood of summaries. This epidemic
# is small enough for an exact answer, so we can see how accurate each of them is.
#
# What you learn: how to put a simulator into a model, how many simulations each method needs, and
# what each reports about its own accuracy.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.stats import beta, binom, gaussian_kde, lognorm

import pymc_kernel as pk

SETTINGS = {"random_seed": 1, "progressbar": False}
PEOPLE, FIRST, DAYS = 400, 5, 14

# %% [markdown]
# ## The simulator
#
# It takes a random generator, the parameters and the shape of the result: `(14,)` for one epidemic,
# `(n, 14)` for n of them at once, which is far faster than n calls.


# %%
def epidemic(rng, rate, share, size):
    infected = np.full(size[:-1], FIRST)
    days = []
    for _ in range(size[-1]):
        infected = infected + rng.binomial(
            PEOPLE - infected, -np.expm1(-rate * infected / PEOPLE)
        )
        days.append(rng.binomial(infected, share))
    return np.stack(days, axis=-1)


def priors():
    return pm.LogNormal("rate", 0, 0.5), pm.Beta("share", 4, 4)


reported = epidemic(np.random.default_rng(3), rate=0.8, share=0.4, size=(DAYS,))
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.bar(np.arange(1, DAYS + 1), reported, color="0.6")
axis.set(xlabel="day", ylabel="people ill, as reported")
figure.savefig("reported.png", dpi=100)


# %% [markdown]
# ## The exact posterior
#
# The number of infected people is a hidden Markov chain with 396 states, so the forward algorithm
# sums over all courses. We run it on a grid of both parameters.

# %%
rates, shares = np.linspace(0.4, 1.1, 57), np.linspace(0.3, 0.56, 53)
states = np.arange(FIRST, PEOPLE + 1)
seen = binom.pmf(
    reported[:, None, None], states[:, None], shares
)  # (day, state, share)
log_posterior = np.empty((rates.size, shares.size))
for i, rate in enumerate(rates):
    new = states - states[:, None]
    move = binom.pmf(
        new, PEOPLE - states[:, None], -np.expm1(-rate * states[:, None] / PEOPLE)
    )  # (from, to)
    ways = np.zeros((states.size, shares.size))
    ways[0] = 1.0
    for emission in seen:
        ways = (move.T @ ways) * emission
    log_posterior[i] = (
        np.log(ways.sum(axis=0)) + lognorm.logpdf(rate, 0.5) + beta.logpdf(shares, 4, 4)
    )
exact = np.exp(log_posterior - log_posterior.max())
exact /= exact.sum()
moments = {}
for name, axis_values, marginal in (
    ("rate", rates, exact.sum(axis=1)),
    ("share", shares, exact.sum(axis=0)),
):
    mean = marginal @ axis_values
    moments[name] = mean, np.sqrt(marginal @ (axis_values - mean) ** 2)
    print(f"{name}: mean {mean:.3f}, standard deviation {moments[name][1]:.3f}")

# %% [markdown]
# ## Summaries
#
# Fourteen numbers are few for some methods and many for others. Five sums, over the first days, the
# days of growth and the last days, say nearly as much. The square root makes the variance of the
# counts nearly constant.


# %%
def summaries(days):
    parts = [
        days[..., first:last].sum(axis=-1)
        for first, last in ((0, 4), (4, 7), (7, 9), (9, 11), (11, 14))
    ]
    return np.sqrt(np.stack(parts, axis=-1))


# %% [markdown]
# ## KernelABC: compare simulations at every draw
#
# `pk.KernelABC` compares simulated with observed summaries under a Gaussian kernel. This gives a
# noisy likelihood, and the chain targets its posterior exactly. The bandwidth is learned from pilot
# simulations near the posterior. Each evaluation needs two hundred simulations, which one call of
# the simulator makes. With fifty, an estimate was now and then so large that a chain stayed there
# for two hundred proposals, and a warning said so.

# %%
with pm.Model():
    rate, share = priors()
    settings = {"summary": summaries, "vectorized": True, "num_simulations": 200}
    pk.KernelABC("reported", epidemic, rate, share, observed=reported, **settings)
    abc = pk.sample_khmc(4000, tune=2000, chains=4, **SETTINGS)
print(az.summary(abc))
print(
    "bandwidth:",
    np.round(np.sqrt(np.diag(abc["constant_data"]["reported_epsilon"].values)), 2),
)

# %% [markdown]
# ## Kernel Bayes' rule: learn the parameters from the data
#
# Now ten thousand simulations from the prior are made once. A kernel regression of the parameters
# on the fourteen raw counts is fitted to those near the observation. Each draw is its mean plus a
# residual.

# %%
with pm.Model() as model:
    rate, share = priors()
    pm.Simulator("reported", epidemic, rate, share, observed=reported)
    rule_draws, rule = pk.sample_kbr(
        num_simulations=10_000, return_fitted=True, **SETTINGS
    )
print(az.summary(rule_draws))
for name in ("learning_error", "second_opinion_shift", "typicality"):
    print(name, round(float(abs(rule_draws["sample_stats"][name]).max()), 3))

# %% [markdown]
# `typicality` says how usual the observation is among the simulations. `learning_error` says how
# well the posterior means are known. `second_opinion_shift` says how far away a likelihood learned
# from the same simulations puts them. The last two are in posterior standard deviations, for the
# worst parameter. The second is too large, and the posterior lacks its upper tail, so a warning
# says that this posterior should not be trusted: few of the ten thousand simulations from the prior
# are near these data.
#
# A fitted rule gives the posterior of any other epidemic in no time. So we can test it on many
# epidemics whose parameters are known: if the rule is right, the ranks of these parameters among
# the posterior draws are uniform. The curves show how far the ranks are from uniform, and p is the
# probability of a deviation this large by chance. The third panel tests joint regions in the same
# way.

# %%
picture = pk.plot_calibration(
    rule, var_names=["rate", "share"], random_seed=1, backend="matplotlib"
)
picture.savefig("calibration_of_the_rule.png", dpi=100)

# %% [markdown]
# The p-values of the share and of joint regions are below 5 %: over all epidemics of the prior, the
# rule's posteriors are not quite right either. So the warning is no accident of these data.
#
# ## A learned likelihood: the fewest simulations
#
# `pk.sample_likelihood_free` learns how the five summaries depend on the parameters, as smooth
# functions. It simulates in rounds, each where the previous round puts the posterior.

# %%
with model:
    learned = pk.sample_likelihood_free(
        num_simulations=1000, summary=summaries, **SETTINGS
    )
print(az.summary(learned))
print(
    learned["round_stats"]
    .to_dataset()[["num_simulations", "power", "change"]]
    .to_pandas()
)

# %% [markdown]
# ## All of them beside the exact posterior
#
# *off* is the difference of the means in exact standard deviations, and *width* is the ratio of
# standard deviations. The kernel adds its own width, so the posterior of `KernelABC` is wider than
# the exact one. The learned likelihood has nearly the right width from 5,000 times fewer.
# Its means are off because five sums carry less information than fourteen days; with ten thousand
# simulations they are off by the same amount. In the learned posteriors R-hat is 1.01 and 1.02, the
# second above the usual 1.01: each chain is a fit of its own, and this is how far the fits lie
# apart. The small bump of `KernelABC` at a share of .52 is most likely a chain that stayed on a
# large estimate: more simulations for each evaluation would smooth it.

# %%
abc_simulations = (
    200
    * int(
        abc["sample_stats"].attrs["tuning_evaluations"]
        + abc["sample_stats"]["evaluations"].sum()
    )
    + 3000
)
results = {
    "KernelABC": (abc, abc_simulations),
    "kernel Bayes' rule": (rule_draws, 10_000),
    "learned likelihood": (learned, 1000),
}
for label, (idata, num_simulations) in results.items():
    line = f"{label:20s} {num_simulations:7,d} simulations"
    for name, (mean, sd) in moments.items():
        draws = idata["posterior"][name].values
        line += (
            f"   {name}: off {(draws.mean() - mean) / sd:+.2f}, "
            f"width {draws.std() / sd:.2f}"
        )
    print(line)

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
titles = {"rate": "rate of infection, a day", "share": "share that is reported"}
for axis, (name, grid, marginal) in zip(
    axes,
    (("rate", rates, exact.sum(axis=1)), ("share", shares, exact.sum(axis=0))),
    strict=True,
):
    axis.fill_between(grid, marginal / (grid[1] - grid[0]), color="0.85", label="exact")
    for (label, (idata, _)), style in zip(
        results.items(), ("-", "--", ":"), strict=True
    ):
        axis.plot(
            grid,
            gaussian_kde(idata["posterior"][name].values.ravel())(grid),
            style,
            linewidth=2,
            label=label,
        )
    axis.set(xlabel=titles[name], yticks=[], ylim=(0, None))
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
figure.savefig("epidemic_posteriors.png", dpi=100)

# %% [markdown]
# ## Which one?
#
# - Simulations are expensive, and you know a few good summaries: use the learned likelihood.
# - You have raw data, or many data sets to analyze: use kernel Bayes' rule, with many more
#   simulations than here, as its warning says.
# - Simulations are cheap, and you want the posterior given the summaries, up to a kernel of known
#   width: use `pk.KernelABC`.
#
# ## From warning to fix
#
# - *The bandwidth is ... times the spread of its summaries* of `KernelABC`: use more simulations
#   for each evaluation (the warning says how many), or fewer summaries.
# - *This posterior should not be trusted* of the rule: use more simulations, summaries, or a
#   learned likelihood.
# - *The model simulates nothing like the data*: no method can fix that. Look at draws from
#   `pm.sample_prior_predictive` first.
#
# ## When not
#
# This epidemic has a likelihood, so in practice you would use it: an exact method needs no
# summaries. If the exact sum is too expensive, a particle filter estimates the likelihood without
# bias ([noisy likelihoods](../docs/methods/estimated_likelihood.rst)).
