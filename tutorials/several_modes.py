# %% [markdown]
# # Several modes, and the evidence: how long is the period?
#
# Fourteen measurements of a star's speed, on nights far apart. Does it wobble, as a star with a
# planet does, and with which period? With few nights several periods fit, so the posterior has
# several modes. And whether there is a wobble at all is a question for the evidence, the
# probability of the data under each model.
#
# The model is smooth, and NUTS can sample it; but its chains stay in the modes where they begin.
# Sequential Monte Carlo leads particles from the prior to the posterior, weighs the modes, and
# gives the evidence. In this model two of three parameters can be integrated out by hand, so the
# exact answer is known.
#
# What you learn: what several modes look like in chains, how particles find and weigh them, and how
# sure the evidence is.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import pymc_kernel as pk

SETTINGS = {"random_seed": 1, "progressbar": False}

# %% [markdown]
# ## The data
#
# Speeds in meters a second, each known to within 3. They were made with 0.31 wobbles a day, of 5
# meters a second.

# %%
rng = np.random.default_rng(24)
NOISE, SIZE = 3.0, 5.0
nights = np.sort(rng.choice(60, 14, replace=False) + 0.1 * rng.standard_normal(14))
speeds = SIZE * np.sin(2.0 * np.pi * 0.31 * nights + 0.7) + NOISE * rng.standard_normal(14)

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.errorbar(nights, speeds, NOISE, fmt="o", color="black")
axis.set(xlabel="night", ylabel="speed, m / s")
figure.savefig("speeds.png", dpi=100)

# %% [markdown]
# ## The exact answer
#
# Given the frequency the speeds are normal, since the sine and the cosine have normal coefficients.
# So the posterior of the frequency is a curve, and the evidence is the area below it.

# %%
frequencies = np.linspace(0.05, 0.45, 8001)
log_likelihood = np.empty(frequencies.size)
for i, frequency in enumerate(frequencies):
    waves = np.stack(
        [np.sin(2 * np.pi * frequency * nights), np.cos(2 * np.pi * frequency * nights)]
    )
    log_likelihood[i] = multivariate_normal(
        cov=NOISE**2 * np.eye(14) + SIZE**2 * waves.T @ waves
    ).logpdf(speeds)
exact_evidence = logsumexp(log_likelihood) - np.log(frequencies.size)
density = np.exp(log_likelihood - exact_evidence) / 0.4
no_wobble = multivariate_normal(cov=NOISE**2 * np.eye(14)).logpdf(speeds)
print(f"log evidence: with a wobble {exact_evidence:.2f}, without {no_wobble:.2f}")

# %% [markdown]
# ## The model

# %%
with pm.Model() as model:
    frequency = pm.Uniform("frequency", 0.05, 0.45)
    sine = pm.Normal("sine", 0, SIZE)
    cosine = pm.Normal("cosine", 0, SIZE)
    angle = 2.0 * np.pi * frequency * nights
    pm.Normal("speeds", sine * pt.sin(angle) + cosine * pt.cos(angle), NOISE, observed=speeds)

# %% [markdown]
# ## Chains stay where they begin

# %%
with model:
    chains = pm.sample(1000, chains=4, cores=1, **SETTINGS)
print(az.summary(chains, var_names=["frequency"]))
print("means of the chains:", chains["posterior"]["frequency"].mean("draw").values.round(3))

# %% [markdown]
# R-hat is far above one, and PyMC warns of few effective draws: each chain has found a mode, and
# says nothing of the weight of the others. More draws would not help.
#
# ## Particles
#
# Four runs of eight thousand particles each. The kernel `pk.KASMC` moves each particle by the local
# shape of the others, so that steps fit the mode where it is. It needs no surrogate, at the price
# of more evaluations than `pk.KernelHMCSMC`: with a likelihood as cheap as this, a good bargain.
# With `threshold=0.8` the temperature falls more slowly than by default, so that the weights of the
# modes are passed on with less error.

# %%
with model:
    particles = pk.sample_smc(8000, pk.KASMC, threshold=0.8, chains=4, cores=1, **SETTINGS)
evidence = particles["smc_stats"]["log_evidence"].values
print("log evidence of each run:", evidence.round(2), "exact:", round(exact_evidence, 2))

# %%
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
bins = np.linspace(0.05, 0.45, 161)
axis.fill_between(frequencies, density, color="0.8", label="exact")
axis.hist(
    particles["posterior"]["frequency"].values.ravel(),
    bins,
    density=True,
    histtype="step",
    linewidth=1.5,
    label="particles",
)
for k, chain in enumerate(chains["posterior"]["frequency"].values):
    axis.plot(
        chain[::10],
        np.full(100, -3.0 - 2.0 * k),
        "|",
        color="C1",
        label="chains of NUTS" if k == 0 else None,
    )
axis.set(xlabel="frequency, a day", yticks=[], xlim=(0.05, 0.45))
axis.legend(frameon=False)
figure.savefig("frequencies.png", dpi=100)

# %% [markdown]
# At low temperatures particles stay in their modes; `correlation` in `smc_stats` shows it. That
# must be so where modes are far apart: they got their weights before, while particles could go from
# one to the other. It is a reason to compare runs.
#
# Stages of the particles: the inverse temperature rises from zero, the prior, to one, the
# posterior.

# %%
picture = pk.plot_smc(particles, backend="matplotlib")
picture.savefig("stages.png", dpi=100)

# %% [markdown]
# ## The weights of the modes
#
# Halfway between the two tallest peaks is a good place to cut.

# %%
heights = density * ((density > np.roll(density, 1)) & (density > np.roll(density, -1)))
first, second = np.sort(frequencies[np.argsort(heights)[-2:]])
cut = 0.5 * (first + second)
exact_share = density[frequencies < cut].sum() / density.sum()
print(f"share of the posterior below {cut:.2f} a day: exact {exact_share:.3f}")
for label, idata in (("particles", particles), ("NUTS", chains)):
    shares = (idata["posterior"]["frequency"] < cut).mean("draw").values
    print(f"{label}: {shares.round(3)}, on average {shares.mean():.3f}")

# %% [markdown]
# Each run of the particles is an answer by itself, and the spread of the runs is the error of one.
# So it is with the evidence: run two or more, and compare. The wobble is more probable than none by
# the factor

# %%
factor = np.exp(evidence.mean() - no_wobble)
print(f"by particles {factor:.0f}, exact {np.exp(exact_evidence - no_wobble):.0f}")

# %% [markdown]
# ## From warning to fix
#
# - *R-hat far above one* of chains: look at the means of each chain. If they differ and each chain
#   is still, there are modes: particles.
# - *Populations of particles do not agree*: more particles, a larger `max_moves`, or
#   `pk.KernelHMCSMC`.
# - *Runs differ in the evidence*: more particles; the error falls with the square root of their
#   number.
#
# ## When not
#
# No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is
# unlikely in five or more dimensions: the evidence then lacks the mode's mass, no check shows it,
# and runs that agree do not rule it out. Where the prior is very wide, so is the way to the
# posterior; the evidence then depends on the prior's width, whatever method computes it. One mode
# and no need of the evidence: a chain is cheaper.
#
# The same calls work where the likelihood has no gradient or is
# [noisy](../docs/methods/estimated_likelihood.rst), where NUTS cannot be used. For a likelihood of
# a millisecond or more, `pk.KernelHMCSMC` needs a fraction of the evaluations ([sequential Monte
# Carlo](../docs/methods/smc.rst)).
