"""The bandwidth of kernel ABC, from pilot simulations near the posterior."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import logsumexp

from pymc_kernel.kernels.points import LARGEST, as_numbers, as_points, check_magnitude, robust_scales
from pymc_kernel.likelihood_free.rejection import rejection
from pymc_kernel.linalg import whiten

_SHARES = (0.2, 0.1, 0.1, 0.1, 0.1)  # of the pilot simulations: at the prior, then in rounds; the rest are replicates
_NEAREST = 0.2  # nearest share of the simulations so far, from which the next round is learned
_NO_SPREAD = 1e-10  # relative spread of summaries that is due to rounding of constants
_MAX_SCORE = 4.0  # residuals are clipped there, in standard deviations
_NARROWEST = 0.3  # spreads of the posterior are then 4 % too wide at most: less would cost noise for nothing
_WIDEST = 10.0  # in units of the summaries' spread: the likelihood is flat there
_UNINFORMATIVE = 3.0  # costs 0.5 % of relative variance a direction, and still rejects what lies ten deviations off
_MIN_RUNS = 5  # separate runs of simulations, at least, for a variance
_RECOMMENDED_WIDTH = 0.5  # spreads 12 % too wide: what a warning recommends


class TooManyFailures(ValueError):
    """Hardly any pilot simulation succeeded."""


class Pilot(NamedTuple):
    """Simulations near the posterior."""

    positions: np.ndarray  #: (n, d), of the last rounds, and of the replicates
    summaries: np.ndarray  #: (n, q), one simulation at each position
    centers: np.ndarray  #: (k, d), draws of the approximate posterior
    replicates: list[np.ndarray]  #: summaries (r, q) of several simulations at each of these centers


class Bandwidth(NamedTuple):
    """A bandwidth and its accuracy."""

    factor: np.ndarray  #: (q, q), lower Cholesky factor of the kernel's covariance
    relative: float  #: standard deviation of the kernel over a simulation's, where its mean moves with the parameters
    recommended: int  #: simulations an estimate that give the wanted variance at a relative bandwidth of one half
    offset: float  #: root mean square distance of observed summaries from simulated ones, in deviations of the latter
    hidden: float
    """How much the spread of the summaries varies over the posterior, relative to what would remain if the
    posterior used it, as a ratio of standard deviations; above one where information is lost."""


def explore(
    prior: np.ndarray, simulate: Callable, observed: np.ndarray, num_pilot: int, num_replicates: int, rng
) -> Pilot:
    """Return simulations at positions near the posterior, found in rounds of regression-adjusted rejection.

    There are ``num_pilot`` of them in all, ``num_replicates`` at each of the last positions. ``prior`` (n, d) are draws
    of the prior, at least 0.3 ``num_pilot`` of them, on a scale without bounds. ``simulate`` takes positions (k, d) to
    summaries (k, q), NaN where a simulation failed; those ``observed`` are (q,). Raises ``TooManyFailures`` where fewer
    than ten simulations, or less than a tenth, succeeded.
    """
    prior, observed = as_points(prior, "prior"), as_numbers(observed, "observed")
    check_magnitude(prior, "prior")
    if observed.ndim != 1 or not (np.abs(observed) < LARGEST).all():
        raise ValueError(f"observed must be a vector of numbers below {LARGEST:.0e}, got {observed}.")
    counts = [round(share * num_pilot) for share in _SHARES]
    positions, summaries = np.empty((0, prior.shape[1])), np.empty((0, len(observed)))
    proposed = prior[: counts[0]]
    for count in [*counts[1:], None]:
        simulated = simulate(proposed)
        is_whole = (np.abs(simulated) < LARGEST).all(axis=1)
        positions = np.concatenate([positions, proposed[is_whole]])
        summaries = np.concatenate([summaries, simulated[is_whole]])
        if len(positions) < max(10, counts[0] // 10):
            raise TooManyFailures(f"only {len(positions)} of {counts[0]} pilot simulations succeeded")
        near = _near_observation(positions, summaries, observed, max(int(is_whole.sum()), 30))
        if count is not None:
            proposed = near[rng.choice(len(near), size=count)]
            # Add noise with the covariance of the proposals, so that the posterior is not missed.
            covariance = np.atleast_2d(np.cov(proposed.T))
            proposed = proposed + rng.multivariate_normal(np.zeros(len(covariance)), covariance, count, method="eigh")
    at = near[rng.permutation(len(near))[: max(2, (num_pilot - sum(counts)) // num_replicates)]]
    groups = simulate(np.repeat(at, num_replicates, axis=0)).reshape(len(at), num_replicates, -1)
    groups = [s[(np.abs(s) < LARGEST).all(axis=1)] for s in groups]
    usable = [i for i, s in enumerate(groups) if len(s) > 1]
    if not usable:
        raise TooManyFailures("no pilot simulation near the data succeeded")
    centers, groups = at[usable], [groups[i] for i in usable]
    last = slice(-sum(counts[-2:]), None)
    positions = np.concatenate([positions[last], np.repeat(centers, [len(s) for s in groups], axis=0)])
    return Pilot(positions, np.concatenate([summaries[last], *groups]), centers, groups)


def _near_observation(positions, summaries, observed, recent):
    """Return positions (k, d) moved to the observation by a regression of the nearest simulations."""
    scale = robust_scales(summaries[-recent:])[1]
    scaled, target = summaries / scale, observed / scale
    nearest = rejection(scaled, target, _NEAREST)
    latent = positions[nearest.index]
    differences = np.clip(scaled[nearest.index] - target, -10.0 * _MAX_SCORE, 10.0 * _MAX_SCORE)
    moved = latent - _ridge_fit(differences, latent, nearest.weights)
    # A regression may extrapolate, but not by more than the range of its data.
    lowest, highest = latent.min(axis=0), latent.max(axis=0)
    return np.clip(moved, 2.0 * lowest - highest, 2.0 * highest - lowest)


def _ridge_fit(inputs, outputs, weights):
    """Return inputs times slopes of a weighted ridge regression; the penalty is by generalized cross-validation."""
    root = np.sqrt(weights)[:, None]
    center_in, center_out = weights @ inputs, weights @ outputs
    left, values, right = np.linalg.svd((inputs - center_in) * root, full_matrices=False)
    response = (outputs - center_out) * root
    along = left.T @ response
    rest = (response**2).sum(axis=0) - (along**2).sum(axis=0)
    best, slopes = math.inf, None
    for penalty in values[0] ** 2 * np.logspace(-8, 1, 19) if values.size and values[0] > _NO_SPREAD else []:
        kept = values**2 / (values**2 + penalty)
        errors = ((1.0 - kept)[:, None] ** 2 * along**2).sum(axis=0) + np.maximum(rest, 0.0)
        spread = np.maximum((response**2).sum(axis=0), 1e-300)
        score = float((errors / spread).sum()) / (1.0 - (kept.sum() + 1.0) / (len(inputs) + 1.0)) ** 2
        if score < best:
            best, slopes = score, right.T @ ((values / (values**2 + penalty))[:, None] * along)
    return np.zeros_like(outputs) if slopes is None else inputs @ slopes


def choose_bandwidth(pilot: Pilot, observed: np.ndarray, num_simulations: int, log_variance: float) -> Bandwidth:
    """Return the narrowest bandwidth that keeps the variance of the log estimate at ``log_variance``, within bounds.

    With W the covariance of a simulation's summaries at the posterior, the kernel has covariance c^2 W along those
    combinations of summaries whose mean moves with the parameters, and 9 W along all others: these have no information
    on the parameters, and a narrow kernel there only makes the estimate noisy. For normal summaries the spread of the
    posterior is then sqrt(1 + c^2) times that given the summaries.
    """
    root = _noise_factor(pilot)
    informative = _informative_directions(pilot, root)
    offsets = [whiten(s, observed, root) for s in pilot.replicates]

    def log_variance_at(relative, count=num_simulations):
        return float(np.median([_log_variance(u, informative, relative, count) for u in offsets]))

    low, high = math.log(_NARROWEST), math.log(_WIDEST)
    if log_variance_at(_NARROWEST) <= log_variance:
        high = low
    while high - low > 0.01:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if log_variance_at(math.exp(middle)) <= log_variance else (middle, high)
    relative = math.exp(high)
    wide = max(_UNINFORMATIVE, relative)
    covariance = wide**2 * np.eye(len(root)) + (relative**2 - wide**2) * informative @ informative.T
    factor = np.linalg.cholesky(root @ covariance @ root.T)
    recommended = _recommended(log_variance_at, log_variance, min(len(u) for u in offsets) // _MIN_RUNS)
    offset = float(np.sqrt(min((u.mean(axis=0) ** 2).mean() for u in offsets)))
    return Bandwidth(factor, relative, recommended, offset, _hidden_information(offsets, informative))


def _noise_factor(pilot):
    """Return the lower Cholesky factor of the covariance of one simulation's summaries, pooled over positions."""
    residuals = [s - np.median(s, axis=0) for s in pilot.replicates]
    spread = robust_scales(np.concatenate(residuals))[1]
    scores = [np.clip(r / spread, -_MAX_SCORE, _MAX_SCORE) for r in residuals]
    # Means, not medians, are subtracted last: skewed summaries would otherwise seem correlated.
    scores = np.concatenate([s - s.mean(axis=0) for s in scores])
    covariance = scores.T @ scores / len(scores)
    # Shrink correlations, as for any covariance of many summaries from few simulations.
    width = len(spread)
    share = min(1.0, width / len(scores) + 1e-6)
    covariance = (1.0 - share) * covariance + share * np.diag(np.diag(covariance))
    covariance[np.diag_indices(width)] = np.maximum(np.diag(covariance), 1e-6)
    return spread[:, None] * np.linalg.cholesky(covariance)


def _informative_directions(pilot, root):
    """Return an orthonormal basis (q, k) of the whitened combinations whose mean moves with the parameters."""
    whitened = whiten(pilot.summaries, np.median(pilot.summaries, axis=0), root)
    whitened = np.clip(whitened, -10.0 * _MAX_SCORE, 10.0 * _MAX_SCORE)
    z = (pilot.positions - pilot.positions.mean(axis=0)) / np.maximum(pilot.positions.std(axis=0), 1e-300)
    design = z if 4 + 8 * z.shape[1] > len(z) else np.column_stack([z, z**2])
    basis, values, _ = np.linalg.svd(design - design.mean(axis=0), full_matrices=False)
    basis = basis[:, values > 1e-8 * max(values[0], 1e-300)]
    fitted = basis.T @ whitened  # (p, q)
    left = whitened - whitened.mean(axis=0) - basis @ fitted
    noise = np.maximum((left**2).mean(), 1e-12)
    _, strength, directions = np.linalg.svd(fitted, full_matrices=False)
    # Largest singular value of a p x q matrix of noise alone, plus a margin: a direction must be known well.
    largest = math.sqrt(noise) * (math.sqrt(fitted.shape[0]) + math.sqrt(fitted.shape[1]) + 2.0)
    informative = directions[strength > largest].T
    return informative if informative.size else np.eye(len(root))


def _log_variance(offsets, informative, relative, num_simulations):
    """Return the variance of the log mean kernel over ``num_simulations``, from all runs of as many replicates."""
    total, inside = (offsets**2).sum(axis=1), ((offsets @ informative) ** 2).sum(axis=1)
    logs = -0.5 * (inside / relative**2 + (total - inside) / max(_UNINFORMATIVE, relative) ** 2)
    count = min(num_simulations, max(1, len(logs) // _MIN_RUNS))
    runs = sliding_window_view(np.concatenate([logs, logs[: count - 1]]), count)
    # If there are fewer replicates, extrapolate: the variance falls as one over the number of simulations.
    return float(logsumexp(runs, axis=1).var()) * count / num_simulations


def _hidden_information(offsets, informative):
    """Return how much the log noise of summaries varies over the posterior, relative to how well data determine it.

    In q directions where the kernel is wide, the data determine the noise of the summaries to within 1 / sqrt(2 q) on
    the log scale. If the noise varies much more than that over the posterior, information is lost.
    """
    width = len(informative) - informative.shape[1]
    if width == 0 or len(offsets) < 3:
        return 0.0
    centered = [u - u.mean(axis=0) for u in offsets]
    left = [u - u @ informative @ informative.T for u in centered]
    noise = [(u**2).sum() / (width * (len(u) - 1)) for u in left]
    return float(np.std(0.5 * np.log(np.maximum(noise, 1e-300)), ddof=1) * math.sqrt(2.0 * width))


def _recommended(log_variance_at, log_variance, most):
    """Return how many simulations bring the variance down to ``log_variance`` at the ideal bandwidth."""
    count = 1
    while (variance := log_variance_at(_RECOMMENDED_WIDTH, count)) > log_variance and 2 * count <= most:
        count *= 2
    # Beyond what was simulated the variance falls as one over the number.
    return max(count, math.ceil(count * variance / log_variance))
