"""The finite set Stein discrepancy: a test in linear time, with locations that show where draws and target differ.

Imports NumPy, SciPy and lower files of ``stein`` only.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import optimize

from pymc_kernel.kernels.bandwidth import median_distance
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.stein.draws import as_chains, merge_repeats, standardize

__all__ = ["FSSDTest", "fssd_test"]

_SMALLEST_SCALE, _LARGEST_SCALE = 0.1, 10.0  # of the length scale, in median distances
_RIDGE = 1e-2  # added to the standard deviation in the power criterion


@dataclass(frozen=True)
class FSSDTest:
    """The result of the finite set test.

    Attributes
    ----------
    fssd_squared : float
        Unbiased estimate on the draws that the locations were not chosen with; may be negative.
    p_value : float
    locations : ndarray (J, d)
        Where draws and target were compared, in the coordinates of the draws.
    length_scale : float
        Of the Gaussian kernel, in standardized coordinates.
    null : ndarray
        Replicates of the null distribution of n times ``fssd_squared``.
    """

    fssd_squared: float
    p_value: float
    locations: np.ndarray
    length_scale: float
    null: np.ndarray = field(repr=False)


@one_blas_thread
def fssd_test(
    draws,
    scores,
    *,
    num_locations: int = 5,
    train_share: float = 0.3,
    num_replicates: int = 3000,
    max_iterations: int = 50,
    how: str = "whiten",
    rng: np.random.Generator | None = None,
) -> FSSDTest:
    """Test independent draws at a few locations that are chosen for power on a part of them.

    Parameters
    ----------
    draws, scores : array_like (n, d)
        Independent draws: those of a chain must be thinned first, there is no correction for dependence.
    num_locations : int
        J.
    train_share : float
        Share of the draws that locations and length scale are chosen with; the others are tested.
    num_replicates : int
        Of the null distribution, a weighted sum of chi squares.
    max_iterations : int
        Of the search for locations.
    how : {"whiten", "scale", "none"}
        Coordinates, see :func:`standardize`. Locations come back by the inverse, which "straighten" does not have.
    rng : numpy.random.Generator, optional
        Seed 0 by default.

    Notes
    -----
    O(n J d) time for each step of the search, O(n (J d)^2) for the test; Gaussian kernel.

    References
    ----------
    Jitkrittum et al. (2017), A linear-time kernel goodness-of-fit test.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    chains = as_chains(draws, scores)
    n, d = chains.draws.shape
    if not 0.0 < train_share < 1.0 or min(train_share, 1.0 - train_share) * n < 2 * num_locations:
        raise ValueError(
            f"train_share must leave at least {2 * num_locations} draws to choose {num_locations} locations with, and "
            f"as many to test, got {train_share!r} of {n} draws."
        )
    if how == "straighten":
        raise ValueError('how must be "whiten", "scale" or "none", got "straighten": its map has no inverse here.')
    if merge_repeats(chains) is not chains:
        raise ValueError("draws must differ, as independent ones do: test draws that repeat with ksd_test.")
    points, slopes = standardize(chains.draws, chains.scores, how)
    order = rng.permutation(n)
    train, test = np.split(order, [int(train_share * n)])
    middle = median_distance(points[train], rng)
    places = points[rng.choice(train, num_locations, replace=False)]

    def negative_power(parameters):
        value, gradient = _power(points[train], slopes[train], parameters, num_locations)
        return -value, -gradient

    start = np.append(places.ravel(), np.log(middle))
    bounds = [(None, None)] * places.size
    bounds.append((np.log(_SMALLEST_SCALE * middle), np.log(_LARGEST_SCALE * middle)))
    optimum = optimize.minimize(
        negative_power, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": max_iterations}
    )
    features, _, _ = _features(points[test], slopes[test], optimum.x, num_locations)
    features = features.reshape(len(test), -1) / np.sqrt(d * num_locations)
    size = len(test)
    mean = features.mean(axis=0)
    statistic = (size * mean @ mean - (features**2).sum() / size) / (size - 1)
    eigenvalues = np.linalg.eigvalsh(np.cov(features.T, bias=True).reshape(features.shape[1], -1))
    null = (rng.chisquare(1.0, size=(num_replicates, len(eigenvalues))) - 1.0) @ np.maximum(eigenvalues, 0.0)
    return FSSDTest(
        fssd_squared=float(statistic),
        p_value=float((1 + (null >= size * statistic).sum()) / (1 + num_replicates)),
        locations=_back(optimum.x[:-1].reshape(num_locations, d), chains.draws, points),
        length_scale=float(np.exp(optimum.x[-1])),
        null=null,
    )


def _back(places, draws, points):
    """Return standardized locations in the coordinates of the draws: the map between them is affine."""
    if draws is points:
        return places
    design = np.column_stack([points, np.ones(len(points))])
    matrix = np.linalg.lstsq(design, draws, rcond=None)[0]
    return np.column_stack([places, np.ones(len(places))]) @ matrix


def _features(points, scores, parameters, num_locations):
    """Return the Stein features k (s - (x - v) / l^2), shape (n, J, d), the kernel (n, J) and x - v (n, J, d)."""
    places = parameters[:-1].reshape(num_locations, -1)
    square = np.exp(2.0 * parameters[-1])
    off = points[:, None] - places
    kernel = np.exp(-0.5 * (off**2).sum(axis=2) / square)
    return kernel[:, :, None] * (scores[:, None] - off / square), kernel, off


def _power(points, scores, parameters, num_locations):
    """Return the power criterion and its gradient in the places and the log length scale.

    The criterion is |m|^2 / (sd + ridge), m the mean feature, sd = 2 sqrt(mean_i c_i^2), c_i = m' f_i - |m|^2. Since
    the c_i have mean zero, d sd / d f_i = 4 / (n sd) (c_i m + mean_k(c_k f_k)).
    """
    features, kernel, off = _features(points, scores, parameters, num_locations)
    n = len(points)
    flat = features.reshape(n, -1)
    mean = flat.mean(axis=0)
    square = mean @ mean
    centered = flat @ mean - square
    deviation = 2.0 * np.sqrt((centered**2).mean()) + 1e-12
    below = deviation + _RIDGE
    slope = 4.0 / (deviation * n) * (centered[:, None] * mean + (centered[:, None] * flat).mean(axis=0))
    outer = 2.0 * mean / (n * below) - square / below**2 * slope
    outer = outer.reshape(features.shape)
    length_square = np.exp(2.0 * parameters[-1])
    # f = k g, g = s - off / l^2: df/dv = k (I / l^2 + g off' / l^2), df / d log l = k g |off|^2 / l^2 + 2 k off / l^2.
    along = (outer * features).sum(axis=2)
    places = (kernel[:, :, None] * outer + along[:, :, None] * off).sum(axis=0) / length_square
    scale = (along * (off**2).sum(axis=2) + 2.0 * kernel * (outer * off).sum(axis=2)).sum() / length_square
    return square / below, np.append(places.ravel(), scale)
