# %% [markdown]
# # A noisy likelihood: seeds on twenty-one plates
#
# Seeds of two kinds were laid on 21 plates with an extract of bean or cucumber roots, and those
# that germinated were counted (Crowder 1978). Plates differ more than binomial variation allows, so
# each has its own effect. NUTS can sample the 21 effects along with the five parameters of
# interest. Here the effects are averaged out by Monte Carlo, plate by plate. This leaves a model
# with five parameters and a noisy likelihood.
#
# You would not do this to a model that NUTS can sample. You would do it where NUTS cannot be used:
# where the latent variables are discrete, or a long series, or come out of a program. Here NUTS
# gives the right answer for comparison.
#
# What you learn: how to write an unbiased estimate, how noisy it may be, and that the posterior is
# exact.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import betaln, expit, log_expit, logsumexp
from scipy.stats import gaussian_kde

import pymc_kernel as pk

DRAWS = 4000  # in each chain
SETTINGS = {"chains": 4, "random_seed": 1, "progressbar": False}

# %% [markdown]
# ## The data

# %%
germinated = [
    10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10,
    8, 10, 8, 23, 0, 3, 22, 15, 32, 3,
]  # fmt: skip
laid = np.array(
    [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]
)
kind = np.repeat([0.0, 1.0], [11, 10])
cucumber = np.array([0.0] * 5 + [1.0] * 6 + [0.0] * 5 + [1.0] * 5)
design = np.stack([np.ones(21), kind, cucumber, kind * cucumber], axis=1)
coords = {"effect": ["bean", "other kind", "cucumber", "both"], "plate": np.arange(21)}

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
for has_kind, has_cucumber, label in (
    (0, 0, "bean"),
    (0, 1, "cucumber"),
    (1, 0, "other kind, bean"),
    (1, 1, "other kind, cucumber"),
):
    own = np.flatnonzero((kind == has_kind) & (cucumber == has_cucumber))
    axis.scatter(
        own, np.array(germinated)[own] / laid[own], 2.0 * laid[own], label=label
    )
axis.set(
    xlabel="plate (area: seeds laid)",
    ylabel="share that germinated",
    xticks=range(0, 21, 5),
)
axis.legend(
    frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=0.7
)
figure.savefig("plates.png", dpi=100)

# %% [markdown]
# ## The full model, by NUTS

# %%
with pm.Model(coords=coords):
    beta = pm.Normal("beta", 0, 2, dims="effect")
    spread = pm.HalfNormal("spread", 1)
    plate = pm.Normal("plate effect", 0, 1, dims="plate")
    pm.Binomial(
        "germinated", laid, logit_p=design @ beta + spread * plate, observed=germinated
    )
    full = pm.sample(DRAWS, tune=1000, cores=1, **SETTINGS)
print(az.summary(full, var_names=["beta", "spread"], kind="all"))

# %% [markdown]
# ## Two estimates of the likelihood
#
# The likelihood of a plate is an integral over its effect: the binomial probability, averaged over
# a normal distribution. The first estimate draws effects from that normal distribution and
# averages. It is unbiased, and so is the product over plates, since their draws are independent.
#
# Most of these draws are far from the effects that fit the plate's data. The second estimate draws
# near the mode of the integrand, and weights each draw by the ratio of the two densities
# (importance sampling). It is unbiased as well, and far less noisy.


# %%
def log_binomial(logit, observed):
    log_choose = -np.log1p(laid) - betaln(laid - observed + 1, observed + 1)
    return (
        log_choose + observed * log_expit(logit) + (laid - observed) * log_expit(-logit)
    )


def by_prior_draws(num_draws):
    def log_estimate(rng, beta, spread, observed):
        effects = spread * rng.standard_normal((num_draws, 21))
        return (
            logsumexp(log_binomial(design @ beta + effects, observed), axis=0)
            - np.log(num_draws)
        ).sum()

    return log_estimate


def by_importance_sampling(num_draws):
    def log_estimate(rng, beta, spread, observed):
        mean, variance = design @ beta, spread**2
        mode = np.zeros(21)
        for _ in range(8):  # Newton's method for the mode of each plate's effect
            chance = expit(mean + mode)
            precision = laid * chance * (1.0 - chance) + 1.0 / variance
            mode = mode + (observed - laid * chance - mode / variance) / precision
        noise = rng.standard_normal((num_draws, 21))
        effects = mode + noise / np.sqrt(precision)
        log_weights = (
            log_binomial(mean + effects, observed)
            - 0.5 * effects**2 / variance
            + 0.5 * noise**2
        )
        log_weights -= 0.5 * np.log(precision * variance)
        return (logsumexp(log_weights, axis=0) - np.log(num_draws)).sum()

    return log_estimate


# %% [markdown]
# ## How noisy are they?
#
# What counts is the standard deviation of the log estimate, at parameter values from the posterior.
# A value between 1 and 1.7 makes the best use of a fixed computing budget. Far above that, chains
# get stuck. Below it, draws are wasted, but nothing is wrong.

# %%
rng = np.random.default_rng(1)
at = {"beta": full["posterior"]["beta"].mean(("chain", "draw")).values, "spread": 0.4}
sizes = [1, 2, 5, 10, 20, 50, 100]
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
axis.axhspan(1.0, 1.7, color="0.9")
axis.text(95, 1.28, "best for chains", ha="right", va="center", color="0.35")
for make, label, marker in (
    (by_prior_draws, "effects from their prior", "o"),
    (by_importance_sampling, "effects near the mode", "s"),
):
    estimates = [
        [make(n)(rng, observed=np.array(germinated), **at) for _ in range(200)]
        for n in sizes
    ]
    axis.plot(sizes, np.std(estimates, axis=1), marker=marker, label=label)
axis.set(
    xscale="log",
    yscale="log",
    xlabel="draws of each plate's effect",
    ylabel="sd of the log likelihood",
)
axis.set(xticks=sizes, xticklabels=sizes)
axis.minorticks_off()
axis.legend(frameon=False, loc="lower left")
figure.savefig("noise_of_the_estimates.png", dpi=100)

# %% [markdown]
# ## Sampling with the noisy likelihood
#
# The model has only the five parameters. `pk.EstimatedLikelihood` takes the function that returns
# the estimate. We sample the model twice, on purpose with few draws of each effect: 10 from the
# prior, which puts the noise near the best range, and 3 near the mode.


# %%
def noisy_model(log_estimate):
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0, 2, dims="effect")
        spread = pm.HalfNormal("spread", 1)
        pk.EstimatedLikelihood(
            "germinated", log_estimate, beta, spread, observed=germinated, dims="plate"
        )
    return model


results = {"NUTS, full model": full}
for label, log_estimate in (
    ("10 draws from the prior", by_prior_draws(10)),
    ("3 draws near the mode", by_importance_sampling(3)),
):
    with noisy_model(log_estimate):
        results[label] = pk.sample_khmc(DRAWS, tune=1500, **SETTINGS)

# %% [markdown]
# ## The same posterior, more or less efficiently
#
# The noise costs effective draws: log estimates with a standard deviation of 0.9 leave a tenth of
# those with 0.1. It does not change the posterior: means and standard deviations agree with those
# of NUTS to within their Monte Carlo errors. The variance of the log estimate was measured while
# the chains tuned.

# %%
for label, idata in results.items():
    table = az.summary(idata, var_names=["beta", "spread"], round_to="none")
    line = f"{label:24s} smallest ESS {table['ess_bulk'].min():5.0f}, "
    line += f"R-hat {table['r_hat'].max():.2f}, "
    draws = idata["posterior"]["spread"].values
    line += f"spread of plates {draws.mean():.3f} (sd {draws.std():.3f})"
    if idata is not full:
        variance = float(idata["sample_stats"]["log_estimate_variance"].mean())
        line += f", sd of log estimates {variance**0.5:.1f}"
    print(line)

# %%
figure, axes = plt.subplots(1, 5, figsize=(10, 2.8), layout="constrained")
styles = {"color": ["black", "C0", "C1"], "linestyle": ["-", "--", ":"]}
for i, axis in enumerate(axes):
    title = coords["effect"][i] if i < 4 else "spread of plates"
    for k, (label, idata) in enumerate(results.items()):
        posterior = idata["posterior"]
        draws = (
            posterior["beta"].values[..., i] if i < 4 else posterior["spread"].values
        ).ravel()
        grid = np.linspace(*np.quantile(draws, [0.002, 0.998]), 100)
        style = {name: values[k] for name, values in styles.items()}
        axis.plot(
            grid,
            gaussian_kde(draws)(grid),
            label=label if i == 0 else None,
            linewidth=2,
            **style,
        )
    axis.set(title=title, yticks=[], xlabel="log odds")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
figure.savefig("noisy_and_full.png", dpi=100)

# %% [markdown]
# ## What would have gone wrong
#
# PyMC's Metropolis, DEMetropolis and Slice re-evaluate the density at the current point. With a
# fresh estimate there, they would target a different, wider distribution, and R-hat would not show
# it. `pk.EstimatedLikelihood` returns the estimate that it already made at that point, so these
# steps are exact, too.
#
# If log likelihoods were averaged instead of likelihoods, the estimate would be biased, and no
# sampler could correct that.
#
# ## From warning to fix
#
# - *... is estimated, and where the chain is ...*: the chain is stuck where an estimate came out
#   too high by chance. Take more draws inside the estimate, or a better proposal for them, as
#   above.
# - *R-hat above 1.01*: a noisy chain stays for a long time where an estimate came out high. Less
#   noise helps more than longer chains.
#
# ## When not
#
# Where NUTS can sample the latent variables, let it. If the log estimate has a standard deviation
# above 1.7, take more draws if you can afford them. A better proposal, as above, helps far more
# than more draws.
