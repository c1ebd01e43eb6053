# %% [markdown]
# # Can these draws be trusted? Judging approximate samples
#
# R-hat says whether chains agree with each other. The effective sample size says how many
# independent draws they are worth. Neither says whether the draws are from the posterior. A
# variational fit gives independent draws from the wrong distribution: it has no R-hat, and its
# effective sample size is perfect.
#
# The kernel Stein discrepancy compares draws with the model itself, through the gradient of its log
# density. It needs no reference draws. Here it judges NUTS, ADVI, a Laplace approximation and two
# stochastic-gradient chains, all on the same small model. The last example is a case that it cannot
# judge.
#
# What you learn: how to run the check, how to read its result, how to find the parameter that is
# wrong, and what the check cannot see.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_kernel as pk

DRAWS = 2000  # in each of two chains
rng = np.random.default_rng(1)

# %% [markdown]
# ## The model
#
# A logistic regression explains which of 60 patients got well, by dose and age. Older patients were
# given higher doses, so the two slopes are correlated in the posterior. There are few data, so the
# posterior is skewed, too.

# %%
age = rng.standard_normal(60)
dose = 0.9 * age + np.sqrt(1.0 - 0.9**2) * rng.standard_normal(60)
design = np.stack([np.ones(60), dose, age], axis=1)
well = rng.random(60) < 1.0 / (1.0 + np.exp(-design @ np.array([1.0, 2.5, -1.5])))

figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
for got_well, marker, label in ((True, "o", "got well"), (False, "x", "did not")):
    axis.plot(age[well == got_well], dose[well == got_well], marker, label=label)
axis.set(xlabel="age, in standard deviations", ylabel="dose")
axis.legend(frameon=False)
figure.savefig("patients.png", dpi=100)

with pm.Model(coords={"slope": ["average", "dose", "age"]}) as model:
    beta = pm.Normal("beta", 0, 5, dims="slope")
    pm.Bernoulli("well", logit_p=design @ beta, observed=well)

# %% [markdown]
# ## Five sets of draws
#
# **NUTS** is exact. **ADVI** treats the parameters as independent normals. The **Laplace**
# approximation treats them as jointly normal, with the curvature at the mode. Pathfinder (in
# `pymc-extras`) could be judged in the same way.

# %%
settings = {"random_seed": 1, "progressbar": False}
with model:
    nuts = pm.sample(DRAWS, chains=2, cores=1, **settings)
    fit = pm.fit(40_000, **settings)
    advi = fit.sample(2 * DRAWS, random_seed=1)

mode = np.zeros(3)
for _ in range(20):  # Newton's method
    chance = 1.0 / (1.0 + np.exp(-design @ mode))
    covariance = np.linalg.inv(
        (design.T * chance * (1.0 - chance)) @ design + np.eye(3) / 25.0
    )
    mode = mode + covariance @ (design.T @ (well - chance) - mode / 25.0)


def as_chains(draws):
    return az.from_dict(
        {"posterior": {"beta": draws}},
        coords={"slope": ["average", "dose", "age"]},
        dims={"beta": ["slope"]},
    )


laplace = as_chains(rng.multivariate_normal(mode, covariance, (2, DRAWS)))

# %% [markdown]
# **Stochastic-gradient** Langevin chains step along a gradient estimated from ten of the sixty
# patients, and add noise. They have no accept-reject step. With small steps they mix slowly; with
# large steps the noise of the gradient makes their draws too wide.


# %%
def stochastic_gradient_chain(rng, step_size, thin, batch=10):
    position, draws = mode.copy(), np.empty((DRAWS, 3))
    for i in range(DRAWS * thin):
        rows = rng.choice(60, batch, replace=False)
        error = well[rows] - 1.0 / (1.0 + np.exp(-design[rows] @ position))
        gradient = design[rows].T @ error * (60 / batch) - position / 25.0
        position = (
            position
            + 0.5 * step_size * gradient
            + np.sqrt(step_size) * rng.standard_normal(3)
        )
        draws[i // thin] = position
    return draws


small = as_chains(
    np.stack([stochastic_gradient_chain(rng, 0.01, 20) for _ in range(2)])
)
large = as_chains(np.stack([stochastic_gradient_chain(rng, 0.1, 20) for _ in range(2)]))

# %% [markdown]
# ## The question, in one call
#
# `pk.ksd_test` gives the discrepancy of the draws, and the discrepancy that the same number of
# independent normal draws has by chance. Correct draws have about that much, or somewhat more if
# the posterior is not normal or the chain is correlated. Chains are thinned first, so that their
# autocorrelation is not mistaken for a misfit.

# %%
results = {
    "NUTS": nuts,
    "ADVI": advi,
    "Laplace": laplace,
    "stochastic gradient, small steps": small,
    "stochastic gradient, large steps": large,
}
reports = {}
for label, idata in results.items():
    reports[label] = report = pk.ksd_test(idata, model=model, random_seed=1)
    spreads = idata["posterior"]["beta"].std(("chain", "draw")).values
    print(
        f"{label:33s} discrepancy {report.ksd:.3f}, "
        f"of normal draws {report.test.normal_ksd:.3f}, "
        f"p {report.p_value:.3f}, spreads {spreads.round(2)}"
    )

# %% [markdown]
# ## Which parameter is wrong?
#
# `pk.summary` is `az.summary` with two more columns: each parameter's share of the discrepancy, and
# the p-value of its own test, corrected for multiple testing. ADVI has perfect effective sample
# sizes, but it fails the check.

# %%
print(pk.summary(advi, model=model, random_seed=1).to_string())

# %% [markdown]
# `pk.diagnose` says the same in words, and what to do about it.

# %%
pk.diagnose(advi, model=model, random_seed=1)

# %% [markdown]
# `pk.plot_ksd` plots the result. Each point shows how far off the draws are. Each bar shows the
# range for the same draws with random signs; the point of correct draws would mostly lie within it.

# %%
picture = pk.plot_ksd(reports["ADVI"], backend="matplotlib")
picture.savefig("advi_discrepancy.png", dpi=100)

# %% [markdown]
# The next picture lays the draws over those of NUTS, which are grey. ADVI is wrong because its
# draws miss both ends of the ridge.

# %%
figure, axes = plt.subplots(
    1, 4, figsize=(11, 3.1), layout="constrained", sharex=True, sharey=True
)
for axis, label in zip(axes, list(results)[1:], strict=True):
    for idata, color in ((nuts, "0.6"), (results[label], "C0")):  # NUTS in grey, below
        values = idata["posterior"]["beta"].values.reshape(-1, 3)[::4]
        axis.plot(
            values[:, 1], values[:, 2], ".", color=color, markersize=2.5, alpha=0.5
        )
    axis.set(title=label.replace(", ", ",\n"), xlabel="slope of dose")
axes[0].set(ylabel="slope of age")
figure.savefig("draws_over_nuts.png", dpi=100)

# %% [markdown]
# ## The verdict must be read with the number of draws
#
# With many draws, the test finds every small bias. So compare the discrepancy with that of the same
# number of normal draws. For NUTS the two are about equal. The discrepancy of the Laplace
# approximation is three times as large, and that of ADVI seven times. ADVI's standard deviations of
# the two slopes are half of the correct ones. The Laplace approximation has missed the skewness,
# and its standard deviations of the slopes are 8 % too small. Whether that matters is for you to
# decide.
#
# The stochastic-gradient chain with small steps shows the opposite problem. It mixes slowly, so few
# of its draws are left after thinning. With few draws, the test would not see a small misfit.

# %%
for label in list(results)[3:]:
    table = az.summary(results[label], kind="diagnostics", round_to="none")
    left = reports[label].test.num_draws
    ess, rhat = table["ess_bulk"].min(), table["r_hat"].max()
    print(f"{label}: smallest ESS {ess:.0f}, R-hat {rhat:.2f}, {left} draws judged")

# %% [markdown]
# ## What the check cannot see
#
# The gradient of a log density says nothing about how much weight each of two separated modes has.
# Here the posterior has two modes of equal weight, at -3 and 3. Nine tenths of the draws are in one
# of them, as if most chains had started there. The discrepancy finds nothing wrong.

# %%
with pm.Model() as two_modes:
    x = pm.Normal("x", 0, 10)
    pm.Normal("square", x**2, 1, observed=9.0)

grid = np.linspace(
    2.0, 4.0, 10_001
)  # one mode, exactly: by the inverse of its distribution function
below = np.cumsum(np.exp(-0.5 * (9.0 - grid**2) ** 2 - 0.005 * grid**2))
size = np.interp(rng.random((2, DRAWS)), below / below[-1], grid)
side = np.where(rng.random((2, DRAWS)) < 0.9, 1.0, -1.0)
lopsided = az.from_dict({"posterior": {"x": side * size}})
print(pk.ksd_test(lopsided, model=two_modes, random_seed=1))

# %% [markdown]
# `pk.diagnose` sees that there are separate modes, and warns that it cannot judge their weights.

# %%
pk.diagnose(lopsided, model=two_modes, random_seed=1)

# %% [markdown]
# So look at R-hat as well, with chains that start far apart. Where there may be several modes, use
# [sequential Monte Carlo](../docs/methods/smc.rst). No check of draws can see a mode that has no
# draws.
#
# ## From warning to fix
#
# - *A discrepancy far above that of normal draws, of few parameters*: look at these parameters in
#   `pk.summary`. Often a standard deviation is too small, as with ADVI. Use a richer approximation
#   (a full-rank one, Pathfinder) or NUTS.
# - *Few draws are left after thinning*: the chain mixes slowly, and the check proves little. Take
#   more draws, or steps that move further.
# - *There are several modes*: the check cannot judge their weights. Particles can.
#
# ## When not
#
# The check loses power as the dimension grows, and its result depends on the coordinates; [its
# page](../docs/methods/checks.rst) says more. For models without a gradient, use
# `score="surrogate"`.
