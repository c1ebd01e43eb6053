"""The proposal of kernel adaptive Metropolis-Hastings: normal, with a covariance that depends on the position.

With z = W^-1 (x - mean) it is gamma^2 I + nu^2 c M H M' for M = 2 [grad k(z, Z_1), ..., grad k(z, Z_n)], H the
centering matrix and c such that the mean trace over the points Z is d.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels import Kernel, RadialKernel
from pymc_kernel.kernels.profiles import fill_profile, radial_row
from pymc_kernel.linalg import cholesky_in_place, dot_product, lower_times, solve_lower, whiten
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread, over_row_blocks

_TRACE_POINTS = 50  # over which the mean trace is taken


class LocalFit(NamedTuple):
    """What the proposal has learned; frozen between refreshes."""

    mean: np.ndarray  # (d,)
    factor: np.ndarray  # (d, d), W: x = mean + W z
    points_t: np.ndarray  # (d, n), the subsample in coordinates z
    inverse_length_scale: np.ndarray  # (d,)
    is_radial: bool
    family: int
    shape_a: float
    shape_b: float
    normalizer: float  # multiplies M H M' so that its mean trace over the subsample is d
    unit: float  # of the scale, in the coordinates z: root mean variance of the points, 1 where they are whitened


@compiled
def _local_covariance(z, fit):
    """Return normalizer x M H M' at z, shape (d, d); O(n d^2) time, (d + 1) n numbers of memory.

    Radial: a column of M is 4 phi'(s) (z - Z_i) / l^2. Dot product: 2 psi'(t) Z_i / l^2. The mean column is subtracted
    before the products: with M M' - n m m' instead, nearly parallel columns would lose all digits.
    """
    points_t, inverse_length_scale = fit.points_t, fit.inverse_length_scale
    d, n = points_t.shape
    slope = np.empty(n)
    columns = np.empty((d, n))
    if fit.is_radial:
        radial_row(z, points_t, inverse_length_scale, slope)
    else:
        slope[:] = 0.0
        for i in range(d):
            slope += z[i] * inverse_length_scale[i] ** 2 * points_t[i]
    fill_profile(fit.family, fit.shape_a, fit.shape_b, np.int64(1), slope, slope)
    ones = np.ones(n)
    for i in range(d):
        # For a dot product all columns have the opposite sign, which does not change M H M'.
        x, factor = (z[i], 4.0) if fit.is_radial else (0.0, 2.0)
        factor *= inverse_length_scale[i] ** 2
        for j in range(n):
            columns[i, j] = factor * slope[j] * (x - points_t[i, j])
        mean = dot_product(columns[i], ones) / n
        for j in range(n):
            columns[i, j] -= mean
    out = np.empty((d, d))
    for i in range(d):
        for k in range(i + 1):
            out[i, k] = out[k, i] = fit.normalizer * dot_product(columns[i], columns[k])
    return out


@compiled
def _proposal_factor(local, gamma, nu):
    """Return the Cholesky factor of gamma^2 I + nu^2 local, and its log determinant (NaN on failure)."""
    d = local.shape[0]
    factor = nu * nu * local
    for i in range(d):
        factor[i, i] += gamma * gamma
    log_det = np.nan
    if cholesky_in_place(factor):
        log_det = 0.0
        for i in range(d):
            log_det += math.log(factor[i, i])
    return factor, log_det


@compiled
def propose(whitened, local, fit, gamma, nu, noise):
    """Return the proposal (x, z, its local covariance) and log q(z | z') - log q(z' | z).

    The whitening is linear with a constant Jacobian, which cancels in the ratio.
    """
    forward, log_det_forward = _proposal_factor(local, gamma, nu)
    displacement = np.empty_like(whitened)
    lower_times(forward, noise, displacement)
    new_whitened = whitened + displacement
    new_local = _local_covariance(new_whitened, fit)
    backward, log_det_backward = _proposal_factor(new_local, gamma, nu)
    position = np.empty_like(whitened)
    lower_times(fit.factor, new_whitened, position)
    position += fit.mean
    solve_lower(backward, displacement, displacement)
    log_ratio = log_det_forward - log_det_backward
    for i in range(noise.shape[0]):
        log_ratio += 0.5 * (noise[i] * noise[i] - displacement[i] * displacement[i])
    return position, new_whitened, new_local, log_ratio


@compiled
def local_at(position, fit):
    """Return z of a position and the normalized local covariance there."""
    whitened = np.empty_like(position)
    solve_lower(fit.factor, position - fit.mean, whitened)
    return whitened, _local_covariance(whitened, fit)


class LocalPlaces(NamedTuple):
    """Positions with what a proposal from them needs."""

    positions: np.ndarray  # (n, d)
    whitened: np.ndarray  # (n, d)
    local: np.ndarray  # (n, d, d)


def places_at(positions: np.ndarray, learned: LocalFit) -> LocalPlaces:
    """Return the local covariances at positions (n, d), on all cores."""
    found = LocalPlaces(positions.copy(), np.empty(positions.shape), np.empty((*positions.shape, positions.shape[1])))
    work = float(learned.points_t.size)
    over_row_blocks(lambda start, stop: _fill_local(*found, learned, start, stop), len(positions), work)
    return found


def propose_all(
    places: LocalPlaces, learned: LocalFit, gamma: float, nu: float, noise: np.ndarray
) -> tuple[LocalPlaces, np.ndarray]:
    """Return a proposal x' for every place x, and log q(x | x') - log q(x' | x), on all cores."""
    proposed, log_ratio = LocalPlaces(*(np.empty_like(part) for part in places)), np.empty(len(noise))
    arrays, work = (*places[1:], learned, gamma, nu, noise, *proposed, log_ratio), float(learned.points_t.size)
    over_row_blocks(lambda start, stop: _fill_proposals(*arrays, start, stop), len(noise), work)
    return proposed, log_ratio


@compiled
def _fill_local(positions, whitened, local, fit, start, stop):
    for i in range(start, stop):
        whitened[i], local[i] = local_at(positions[i], fit)


@compiled
def _fill_proposals(
    whitened, local, fit, gamma, nu, noise, positions, new_whitened, new_local, log_ratio, start, stop
):  # fmt: skip
    for i in range(start, stop):
        positions[i], new_whitened[i], new_local[i], log_ratio[i] = propose(
            whitened[i], local[i], fit, gamma, nu, noise[i]
        )


@one_blas_thread
def fit(points: np.ndarray, mean: np.ndarray, factor: np.ndarray, config, rng: np.random.Generator) -> LocalFit:
    """Return a proposal learned from ``points`` (n, d), in coordinates factor^-1 (x - mean) where these are whitened.

    The points are the draws of a chain, many of them repeated: repeated points count repeatedly as a sample of the
    target, but once for the median heuristic. Raises ``ValueError`` where all coincide: no length scale exists then.
    """
    n, d = points.shape
    unit = 1.0
    if not config.whiten:
        mean, factor = np.zeros(d), np.eye(d)
        unit = float(np.linalg.norm(points.std(axis=0))) / math.sqrt(d)
    whitened = whiten(points, mean, factor)
    kernel = config.kernel.resolve(np.unique(whitened, axis=0), rng)
    points_t, inverse = np.ascontiguousarray(whitened.T), kernel.inverse_length_scale(d)
    profile = isinstance(kernel, RadialKernel), kernel.family, *kernel.shape_parameters
    learned = LocalFit(mean, factor, points_t, inverse, *profile, 1.0, unit)
    where = rng.choice(n, size=min(n, _TRACE_POINTS), replace=False)
    trace = np.mean([np.trace(local_at(points[i], learned)[1]) for i in where])
    # With a kernel narrower than the gaps between points the gradients are nearly zero at the points and huge just
    # beside them. So the trace is at least that of the gradient's peak near a single point.
    size = max(trace, _largest_bump(kernel, d))
    return learned._replace(normalizer=d / size if size > 0 else 1.0)


def _largest_bump(kernel: Kernel, num_dims: int) -> float:
    """Return the largest |2 grad k(x, y)|^2 of one point y; 0 for dot-product kernels, which have none."""
    if not isinstance(kernel, RadialKernel):
        return 0.0
    # Along the axis with the shortest length scale, in units of it; all families peak within this stretch.
    inverse = kernel.inverse_length_scale(num_dims)
    distances = np.linspace(0.02, 4.0, 200) / inverse.max()
    along = np.zeros((200, num_dims))
    along[:, inverse.argmax()] = distances
    return float((4.0 * kernel.gradient(along, np.zeros((1, num_dims))) ** 2).sum(axis=2).max())
