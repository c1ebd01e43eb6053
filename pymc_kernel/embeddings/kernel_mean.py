"""Kernel means: weighted points that represent a distribution; its quantiles and draws."""

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from pymc_kernel.embeddings.inputs import latent_kernel
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.base import gram_times
from pymc_kernel.kernels.points import as_points, check_whole, systematic
from pymc_kernel.parallel import one_blas_thread

_PREIMAGE_STEPS = 200  # of the fixed point, at most
_PREIMAGE_TOLERANCE = 1e-8  # of a step, in length scales: as exact as sums of floating-point kernels are
_SHARES = 2.0 ** -np.arange(9.0)  # of the weight within a point's smoothing width: down to one of 250 points
_MOST_SMOOTHED = 1000  # points at once, in memory O(n^2)
_SINGULAR, _ROUNDING = 1e-12, 1e-9  # variances without any spread; the smallest width


class KernelMean:
    """sum_i w_i k(z_i, .), the embedding of one distribution or of several on the same points.

    Parameters
    ----------
    points : array_like (n, d)
    weights : array_like (n,) or (m, n), optional
        May be negative, as those of kernel Bayes' rule are; equal by default. Rows represent different distributions:
        all results then have a first axis of length m.
    kernel : kernel, optional
        By default Gaussian at the median distance of the points.
    rng : int or numpy.random.Generator, optional
        Draws the 500 points whose median distance is used, if there are more.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.embeddings import KernelMean
    >>> mean = KernelMean(np.random.default_rng(0).normal(size=(500, 1)))
    >>> float(mean.interval(0.9)[0, 1].round(1))
    1.6
    """

    def __init__(self, points, weights=None, kernel=None, *, rng=None):
        self.points = as_points(points, "points")
        n = len(self.points)
        self.weights = np.full(n, 1.0 / n) if weights is None else np.asarray(weights, dtype=float)
        if self.weights.ndim not in (1, 2) or self.weights.shape[-1] != n or not np.isfinite(self.weights).all():
            raise ValueError(f"weights must be finite, of shape ({n},) or (m, {n}), got {self.weights.shape}.")
        self.kernel = latent_kernel(kernel, self.points, np.random.default_rng(rng))

    def __len__(self):
        return 1 if self.weights.ndim == 1 else len(self.weights)

    def __getitem__(self, index) -> "KernelMean":
        """Return the distribution (or distributions) at ``index`` of the first axis."""
        if self.weights.ndim == 1:
            raise TypeError("this kernel mean stands for one distribution and has no first axis.")
        return KernelMean(self.points, self.weights[index], self.kernel)

    @one_blas_thread
    def expectation(self, function) -> np.ndarray:
        """Return sum_i w_i f(z_i) of a function of points (n, d), or of its values (n,), or (n, p) for p functions.

        The theory covers functions in the RKHS of the kernel, which are smooth. Indicators and steep functions are
        averaged as well, without that guarantee; for probabilities use :meth:`quantile`.
        """
        values = np.asarray(function(self.points) if callable(function) else function, dtype=float)
        if values.ndim not in (1, 2) or len(values) != len(self.points):
            raise ValueError(f"the function must have {len(self.points)} values, one per point, got {values.shape}.")
        return self.weights @ values

    @one_blas_thread
    def mean(self) -> np.ndarray:
        """Return the expectation of the points, shape (d,) or (m, d)."""
        return self.weights @ self.points

    @one_blas_thread
    def covariance(self) -> np.ndarray:
        """Return the covariance under the weights divided by their sum, shape (d, d) or (m, d, d).

        Signed weights may make it indefinite.
        """
        weights = np.atleast_2d(self.weights)
        totals = weights.sum(axis=1, keepdims=True)
        if not (totals > 0.0).all():
            raise ValueError(f"weights sum to {totals.min():g}: there is no distribution to take a covariance of.")
        weights = weights / totals
        centered = self.points - self.points.mean(axis=0)  # against cancellation
        second = np.einsum("mi,ij,ik->mjk", weights, centered, centered, optimize=True)
        first = weights @ centered
        out = second - first[:, :, None] * first[:, None, :]
        return out[0] if self.weights.ndim == 1 else out

    @one_blas_thread
    def __call__(self, points) -> np.ndarray:
        """Return the embedding at ``points`` (k, d), shape (k,) or (m, k). Memory O(1024 n)."""
        points = as_points(points, "points")
        return gram_times(self.kernel, points, self.weights.T, self.points).T

    @one_blas_thread
    def mmd(self, other: "KernelMean") -> np.ndarray:
        """Return the maximum mean discrepancy to ``other`` under this one's kernel: a number, or (m,)."""
        points = np.concatenate([self.points, other.points])
        mine, theirs = np.atleast_2d(self.weights), np.atleast_2d(other.weights)
        rows = max(len(mine), len(theirs))
        difference = np.hstack([np.broadcast_to(w, (rows, w.shape[1])) for w in (mine, -theirs)])
        squared = np.einsum("mi,mi->m", difference, KernelMean(points, difference, self.kernel)(points))
        out = np.sqrt(np.maximum(squared, 0.0))
        return out[0] if self.weights.ndim == other.weights.ndim == 1 else out

    def quantile(self, probabilities) -> np.ndarray:
        """Return marginal quantiles, shape (q, d) or (m, q, d).

        The weighted distribution function is made monotone by its isotonic regression, then inverted.
        """
        probabilities = np.atleast_1d(np.asarray(probabilities, dtype=float))
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise ValueError(f"probabilities must be in [0, 1], got {probabilities}.")
        return self._each(self.weights, lambda row: signed_quantiles(self.points, row, probabilities))

    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Return central marginal intervals, shape (d, 2) or (m, d, 2)."""
        tail = 0.5 * (1.0 - probability)
        return np.moveaxis(self.quantile([tail, 1.0 - tail]), -2, -1)

    @one_blas_thread
    def sample(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (num_draws, d) or (m, num_draws, d) among the points, in random order.

        Drawn by their weights; by :meth:`herd` if some weights are negative.
        """
        check_whole(least=0, num_draws=num_draws)
        if (self.weights < 0.0).any():
            return rng.permutation(self.herd(num_draws), axis=-2)
        return self._each(self.weights, lambda row: self.points[resample(row, num_draws, rng)])

    @one_blas_thread
    def herd(self, num_draws: int) -> np.ndarray:
        """Return points (num_draws, d) chosen one by one so that their mean embedding follows this one.

        Kernel herding (Chen, Welling and Smola 2010): expectations of functions in the RKHS converge at a rate of
        1 / num_draws, with independent draws at its root. O(n^2) for the embedding, O(n) kernels a draw.
        """
        check_whole(least=0, num_draws=num_draws)
        return self._each(self(self.points), lambda row: self.points[self._herded(row, num_draws)])

    def _herded(self, embedding, size):
        """Return indices (size,) of points, each where the embedding (n,) most exceeds that of the points before."""
        chosen, served = np.empty(size, dtype=np.int64), np.zeros(len(self.points))
        for t in range(size):
            chosen[t] = int(np.argmax(embedding - served / (t + 1.0)))
            served += self.kernel(self.points[chosen[t]][None], self.points)[0]
        return chosen

    @one_blas_thread
    def point_estimate(self) -> np.ndarray:
        """Return the point whose feature is nearest to the embedding, shape (d,) or (m, d): its preimage, a mode.

        The fixed point of Mika et al. (1999) and Song et al. (2009), for Gaussian kernels, from the point of the sample
        where the embedding is largest.
        """
        if not isinstance(self.kernel, Gaussian):
            name = type(self.kernel).__name__
            raise TypeError(f"the fixed point is that of a Gaussian kernel, not of {name}; take mean() instead.")
        return self._each(self.weights, self._preimage)

    def _preimage(self, weights):
        scale = np.asarray(self.kernel.length_scale)
        here = self.points[int(np.argmax(self.kernel.dot(self.points, weights)))]
        pull = weights * self.kernel(here[None], self.points)[0]
        for _ in range(_PREIMAGE_STEPS):
            if not pull.sum() > 0.0:
                break
            new = pull @ self.points / pull.sum()
            new_pull = weights * self.kernel(new[None], self.points)[0]
            if not new_pull.sum() >= pull.sum():
                break  # negative weights can make the step overshoot; the best point so far is kept
            moved = np.max(np.abs(new - here) / scale)
            here, pull = new, new_pull
            if moved < _PREIMAGE_TOLERANCE:
                break
        return here

    def _each(self, rows, function):
        """Return ``function`` of each row, stacked; of the only one where this stands for one distribution."""
        return function(rows) if self.weights.ndim == 1 else np.stack([function(row) for row in rows])


@one_blas_thread
def smoothed_draws(points: np.ndarray, weights: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return draws (num_draws, d) of weighted points (n, d), each smoothed by a normal distribution of its own width.

    In coordinates with covariance one, the width of a point is the distance within which a share of the weight lies
    (Breiman, Meisel and Purcell 1977), over root d. One share serves all points: the one with the largest weighted
    leave-one-out likelihood, which adapts to dimension and shape. Shrinking the draws preserves mean and covariance
    (West 1993). Of more than 1,000 points a sample is smoothed, since time is O(n^2 log n) and memory O(n^2).
    """
    if len(points) > _MOST_SMOOTHED:
        kept, counts = np.unique(resample(weights, _MOST_SMOOTHED, rng), return_counts=True)
        mean, points, weights = weights @ points, points[kept], counts / _MOST_SMOOTHED
        points = points + (mean - weights @ points)
    mean = weights @ points
    spread = np.sqrt(np.maximum(weights @ (points - mean) ** 2, 1e-300))
    scaled = (points - mean) / spread
    values, vectors = np.linalg.eigh((scaled.T * weights) @ scaled)
    basis = vectors[:, values > _SINGULAR] * np.sqrt(values[values > _SINGULAR])  # empty where all points coincide
    white = scaled @ (basis / values[values > _SINGULAR])
    widths = _leave_one_out_widths(white, weights) if basis.size else np.zeros(len(points))
    places = resample(weights, num_draws, rng)
    noise = widths[places, None] * rng.standard_normal((num_draws, white.shape[1]))
    return mean + (white[places] + noise) / np.sqrt(1.0 + weights @ widths**2) @ basis.T * spread


def _leave_one_out_widths(points, weights):
    """Return the widths (n,) of normal densities around points (n, d) of covariance one, before they are shrunk."""
    n, d = points.shape
    distances = cdist(points, points)
    order = np.argsort(distances, axis=1)
    shares = np.cumsum(weights[order], axis=1) / weights.sum()
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    best, chosen = -np.inf, None
    for share in _SHARES:
        # The nearest point is the point itself; at least one other is within.
        last = np.clip((shares < share).sum(axis=1), 1, n - 1)
        widths = distances[np.arange(n), order[np.arange(n), last]] / np.sqrt(d)
        widths = np.maximum(widths, _ROUNDING)
        shrunk = np.sqrt(1.0 + weights @ widths**2)
        squared = (cdist(points, points / shrunk) * shrunk / widths) ** 2
        logs = log_weights - d * np.log(widths / shrunk) - 0.5 * squared
        np.fill_diagonal(logs, -np.inf)
        score = weights @ (logsumexp(logs, axis=1) - np.log1p(-weights))
        if score > best:
            best, chosen = score, widths
    return chosen


def signed_quantiles(points: np.ndarray, weights: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return marginal quantiles (q, d) of ``points`` (n, d) with ``weights`` (n,) that may be negative.

    The running sum of the weights is replaced by the nearest monotone function, cut at 0 and at the total. It is
    inverted linearly between the middles of its jumps.
    """
    total = weights.sum()
    if not total > 0.0:
        raise ValueError(f"the weights sum to {total:g}: there is no distribution to take quantiles of.")
    out = np.empty((len(probabilities), points.shape[1]))
    for j, column in enumerate(points.T):
        order = np.argsort(column, kind="stable")
        steps = np.clip(isotonic_regression(np.cumsum(weights[order]) / total).x, 0.0, 1.0)
        rises = np.diff(steps, prepend=0.0) > 0.0
        values, steps = column[order][rises], steps[rises]
        heights = steps - 0.5 * np.diff(steps, prepend=0.0)
        out[:, j] = np.interp(probabilities, heights, values)
    return out


def resample(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``size`` indices with frequencies as near to ``weights`` as one uniform number allows, in random order."""
    return rng.permutation(systematic(weights, size, rng))
