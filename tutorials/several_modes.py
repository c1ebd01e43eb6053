# %% [markdown]
# # Several modes, and the evidence: how long is the period?
#
# We have fourteen measurements of a star's speed, on nights far apart. Does the star wobble, as a
# star with a planet does, and with which period? With so few nights, several periods fit, so the
# posterior has several modes. Whether there is a wobble at all is a question for the evidence, the
# probability of the data under each model.
#
# The model is smooth, so NUTS can be used, but its chains stay in the modes where they start.
# Sequential Monte Carlo moves particles from the prior to the posterior, weighs the modes, and
# estimates the evidence. In this model two of three parameters can be integrated out by hand, so
# the exact answer is known.
#
# What you learn: what several modes look like in chains, how particles find and weigh them, and how
# precise the estimate of the evidence is.

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
# Speeds are in meters per second, each with a standard error of 3. They were simulated with 0.31
# wobbles per day, with an amplitude of 5 meters per second.

# %%
rng = np.random.default_rng(24)
NOISE, SIZE = 3.0, 5.0
nights = np.sort(rng.choice(60, 14, replace=False) + 0.1 * rng.standard_normal(14))
speeds = SIZE * np.sin(2.0 * np.pi * 0.31 * nights + 0.7) + NOISE * rng.standard_normal(
    14
)

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.errorbar(nights, speeds, NOISE, fmt="o", color="black")
axis.set(xlabel="night", ylabel="speed, m / s")
figure.savefig("speeds.png", dpi=100)

# %% [markdown]
# ## The exact answer
#
# Given the frequency, the speeds are jointly normal, since the sine and the cosine have normal
# coefficients. So the posterior of the frequency can be computed on a grid, and the evidence is the
# average of the likelihood over the uniform prior.

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
    pm.Normal(
        "speeds", sine * pt.sin(angle) + cosine * pt.cos(angle), NOISE, observed=speeds
    )

# %% [markdown]
# ## Chains stay where they begin

# %%
with model:
    chains = pm.sample(1000, chains=4, cores=1, **SETTINGS)
print(az.summary(chains, var_names=["frequency"]))
print(
    "means of the chains:",
    chains["posterior"]["frequency"].mean("draw").values.round(3),
)

# %% [markdown]
# R-hat is far above one, and PyMC warns of few effective draws: each chain has found one mode, and
# says nothing about the weight of the others. More draws would not help.
#
# ## Particles
#
# We make four runs of eight thousand particles each. The kernel `pk.KASMC` moves each particle with
# the local covariance of the others, so that steps fit the mode that the particle is in. It needs
# no surrogate, but takes more evaluations than `pk.KernelHMCSMC`. That is a good bargain with a
# likelihood as cheap as this. With `threshold=0.8` the temperature falls more slowly than by
# default, which makes the weights of the modes more precise.

# %%
with model:
    particles = pk.sample_smc(
        8000, pk.KASMC, threshold=0.8, chains=4, cores=1, **SETTINGS
    )
evidence = particles["smc_stats"]["log_evidence"].values
print(
    "log evidence of each run:", evidence.round(2), "exact:", round(exact_evidence, 2)
)

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
# At low temperatures particles stay in their modes; `correlation` in `smc_stats` shows it. This is
# unavoidable where modes are far apart: their weights were set earlier, while particles could still
# move between them. It is a reason to compare runs.
#
# The next picture shows the stages. The inverse temperature rises from zero (the prior) to one (the
# posterior).

# %%
picture = pk.plot_smc(particles, backend="matplotlib")
picture.savefig("stages.png", dpi=100)

# %% [markdown]
# ## The weights of the modes
#
# We cut halfway between the two tallest peaks, and compare the shares below the cut.

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
# Each run of the particles is an answer by itself, and the spread of the runs shows the error of
# one. The same holds for the evidence: make two or more runs, and compare them. The Bayes factor
# says how much more probable the data are with a wobble than without one.

# %%
factor = np.exp(evidence.mean() - no_wobble)
print(f"by particles {factor:.0f}, exact {np.exp(exact_evidence - no_wobble):.0f}")

# %% [markdown]
# ## From warning to fix
#
# - *R-hat far above one* of chains: look at the mean of each chain. If the means differ and each
#   chain is stationary, there are several modes: use particles.
# - *Populations of particles do not agree*: use more particles, a larger `max_moves`, or
#   `pk.KernelHMCSMC`.
# - *Runs differ in the evidence*: use more particles. The error falls with the square root of their
#   number.
#
# ## When not
#
# No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is
# unlikely in five or more dimensions: the evidence then lacks the mode's mass, no check shows it,
# and runs that agree do not rule it out. Where the prior is very wide, the path to the posterior is
# long, and the evidence depends on the prior's width, whatever method computes it. If there is one
# mode and you do not need the evidence, a chain is cheaper.
#
# The same calls work where NUTS cannot be used, because the likelihood has no gradient or is
# [noisy](../docs/methods/estimated_likelihood.rst). If the likelihood takes a millisecond or more,
# use `pk.KernelHMCSMC`, which needs a fraction of the evaluations ([sequential Monte
# Carlo](../docs/methods/smc.rst)).
