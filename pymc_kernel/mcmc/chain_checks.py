"""Checks of the draws of chains for a part of the density that they lack.

**Coverage of a surrogate.** Moves hardly ever propose places where the surrogate is far too low, and a chain that gets
there is stuck: draws look well mixed, but lack the neck of a funnel, or heavy tails. Moves along a surrogate s work
like independent proposals from s, with importance weights w = pi / s. Of n proposals n s(A) are expected in the region
A where w > t, and s(A) is at most pi(A) / t: less than one if n pi(A) < t. pi(A) is estimated from the upper tail of
the weights at the draws, by a generalized Pareto distribution (Vehtari et al. 2024).

**Open ends.** The ends of the region that a surrogate knows can act as walls that are not in the density: on a long
ridge chains then agree, and all lack the rest. Draws near the end of a coordinate are shifted outward along it, and
their other coordinates by a function of this one alone; the map preserves volume. Then the mean ratio of densities,
shifted to unshifted, is the mass where they land relative to that of the end, whatever the path. With each ratio cut
off at one it is a lower bound. Right draws have as many that far out; if there are fewer, by more than chance, they
lack what is beyond. An end that seems open is judged again by more draws.

**Missed modes.** If a chain covers its target, there are draws near every point whose log density is no lower than
theirs. Points that were evaluated before the chain began, at draws from the prior for example, were not chosen by it:
one that is as high as the draws, with a valley between it and the nearest of them, belongs to a mode not visited. Few
of them lie in a narrow mode, but one on its slope is enough: a short climb is made from all hills but the highest.
"""

import math
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from scipy.special import xlogy

from pymc_kernel.mcmc.metropolis import LogDensity

_TAIL_MASS = 0.025  # beyond an end of a 95 % interval
_STANDARD_ERRORS = 2.0  # of the mass that draws have there: more missing mass is no chance
_LARGEST_LOG_WEIGHT = 500.0  # over the median: larger weights might overflow
_FEWEST = 100  # weights for a fit of their tail, which takes a fifth of them; draws for a quantile and a spread


class Coverage(NamedTuple):
    """What the weights pi / s at the draws say."""

    missing: float  # posterior mass that as many proposals are expected to hit less than once; NaN for few weights
    error: float  # standard error of the mass that as many independent draws have beyond an end of a 95 % interval
    excess: float  # of the largest log weight over the median


def coverage_of(log_weights: np.ndarray) -> Coverage:
    """Return the coverage from the log weights at the draws (n,).

    The missing mass is the largest of three estimates, from all weights, from the distinct ones, as a single long stay
    at the largest weight makes a tail of equal weights, which has no shape, and the share of the draws where the
    surrogate has no density, whose log weights are infinite.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if finite.size < _FEWEST:
        return Coverage(math.nan, math.nan, math.nan)
    distinct = np.unique(finite)
    masses = [_missing_mass(w, finite.size) for w in (finite, distinct) if w.size >= _FEWEST]
    masses.append(np.isposinf(log_weights).mean())
    error = math.sqrt(_TAIL_MASS * (1.0 - _TAIL_MASS) / finite.size)
    return Coverage(float(np.fmax.reduce(masses)), error, float(finite.max() - np.median(finite)))


def is_missing_mass(coverage: Coverage) -> bool:
    """Return whether chains along this surrogate are likely to miss a part of the posterior."""
    return coverage.missing > _STANDARD_ERRORS * coverage.error


def _missing_mass(log_weights, num_proposals):
    """Return the mass of the tail of the weights that proposals are expected to enter less than once."""
    weights = np.exp(np.minimum(np.sort(log_weights) - np.median(log_weights), _LARGEST_LOG_WEIGHT))
    fitted = _tail(weights)
    if fitted is None:
        return math.nan
    threshold, mass, shape, scale = fitted
    # Above the last of these levels the condition always holds.
    levels = np.geomspace(threshold, max(threshold, mass * num_proposals), 1000)
    with np.errstate(divide="ignore"):  # beyond the end of a tail that is bounded
        masses = mass * np.maximum(1.0 + shape * (levels - threshold) / scale, 0.0) ** (-1.0 / shape)
    missing = masses[np.argmax(num_proposals * masses <= levels)]
    return max(0.0, float(missing) - 1.0 / num_proposals)  # which draws from the posterior itself would miss


def _tail(ordered):
    """Return threshold, mass, shape and scale of the upper tail of ordered weights (n,); None for equal or few.

    A generalized Pareto distribution is fitted to the largest min(n / 5, 3 sqrt(n)) of n >= 25, by the estimator of
    Zhang and Stephens (2009) with the weak prior of Vehtari et al. (2024), which draws small samples towards one half.
    """
    n = ordered.size
    num_tail = math.ceil(min(0.2 * n, 3.0 * math.sqrt(n)))
    threshold = ordered[-num_tail - 1]
    excesses = ordered[-num_tail:] - threshold
    # Many draws at one position have equal weights: only what lies above the threshold is the tail.
    excesses = excesses[excesses > 1e-12 * ordered[-1]]
    if excesses.size < 5 or np.ptp(excesses) == 0.0:
        return None
    m = excesses.size  # shape and scale by a mean over a grid of the scale's inverse
    num_nodes = 30 + int(math.sqrt(m))
    nodes = 1.0 - np.sqrt(num_nodes / (np.arange(1.0, num_nodes + 1.0) - 0.5))
    nodes = nodes / (3.0 * excesses[int(m / 4 + 0.5) - 1]) + 1.0 / excesses[-1]
    shapes = np.log1p(-nodes[:, None] * excesses).mean(axis=1)
    log_likelihoods = m * (np.log(-nodes / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihoods - log_likelihoods.max())
    node = (nodes * weights).sum() / weights.sum()
    shape = np.log1p(-node * excesses).mean()
    return threshold, m / n, float((m * shape + 5.0) / (m + 10.0)), float(-shape / node)


NUM_COORDINATES = 4  # that are judged: those along which the chains move least
_FEWEST_AT_END = 20  # draws, for a mean excess to a quarter
# Shares of the draws that are an end. A slow chain's few visits show in a large one, a path that winds is followed by a
# small one alone.
_ENDS = (1.0 / 3.0, 0.1)
_SHIFT = 2.0  # mean excesses of an end, beyond which an exponential tail has a seventh of it
# Draws of each end, and standard errors by which it must seem open to go on, with others. By the last it is open: right
# draws have three in one of a hundred cases, at one of eight ends.
_STAGES = ((16, 1.0), (64, 2.0), (256, 3.0))


class OpenEnd(NamedTuple):
    """An end of the draws that is not one of the density."""

    coordinate: int
    end: float  # the outermost draw
    missing: float  # mass that the density has beyond, by more than the draws have there


class _End(NamedTuple):
    """A share of the draws at one end of a coordinate, and the path that they are shifted along."""

    coordinate: int
    share: float
    excesses: np.ndarray  # (n,): how far each draw is beyond the inmost one of the end, in mean excesses
    rows: np.ndarray  # (k,), of the end's draws, the outermost first
    path: np.ndarray  # (3, d), coefficients of a quadratic in these excesses
    size: float  # effective number of the end's draws


class _Tail(NamedTuple):
    """What lies beyond one end."""

    end: OpenEnd
    expected: float  # effective draws that should be there
    told: float  # that are
    variance: float  # of the first, as it is estimated


def open_ends(
    rng: np.random.Generator, draws: np.ndarray, log_densities: np.ndarray, log_density: LogDensity
) -> list[OpenEnd]:
    """Return the ends of the draws (chain, draw, d), in order, beyond which the exact density has more mass than they.

    Draws of an end are shifted outward. The mean ratio of densities gives the mass where they land, and as many draws
    should lie that far out: at one of both ends of a coordinate, or at both together. 256 evaluations of a position
    (d,), or 64 d if these are fewer; twice as many on average, and up to 1,536 for a coordinate whose ends are open.
    With fewer than 60 draws in all there is no end to judge.

    A chain alone tells little: one by one, chains of ``KernelHMC`` spoke of 2 of 47 right answers and of one of three
    ridges; all four together of none, and of all three (RESULTS, table fresh).
    """
    # The expected squared jump over twice the variance: one minus the autocorrelation.
    variances = draws.var(axis=(0, 1))
    jumps = (np.diff(draws, axis=1) ** 2).mean(axis=(0, 1)) / np.where(variances > 0.0, 2.0 * variances, np.inf)
    flat, log_densities = draws.reshape(-1, draws.shape[-1]), log_densities.ravel()

    def tails(ends, size):
        """Return the tails of the ends of a coordinate one by one, and together."""
        found = [_beyond(end, rng, flat, log_densities, log_density, size) for end in ends]
        return [*([tail] for tail in found), found]

    found = []
    for j in np.argsort(jumps)[:NUM_COORDINATES].tolist():
        of_shares = [[end for sign in (1, -1) if (end := _end_of(draws, j, sign, share))] for share in _ENDS]
        for size, least in _STAGES:
            judged = [[some for some in tails(ends, size) if _errors(some) > least] for ends in of_shares]
            of_shares = [ends for ends, still_open in zip(of_shares, judged, strict=True) if still_open]
        open_tails = [tail.end for of_share in judged for some in of_share for tail in some if tail.end.missing > 0.0]
        found += {end.end: end for end in sorted(open_tails)}.values()  # of one end the one that misses most
    return found


def _end_of(chains, coordinate, sign, share):
    """Return a share of the draws (chain, draw, d), the upper for ``sign`` 1, the lower for -1; None if too few."""
    draws = chains.reshape(-1, chains.shape[-1])
    along, num_end = sign * draws[:, coordinate], int(share * len(draws))
    if num_end < _FEWEST_AT_END or not np.ptp(along):
        return None
    rows = np.argsort(-along)[:num_end]
    t = along - along[rows[-1]]
    t = t / t[rows].mean() if t[rows].any() else t
    path = np.linalg.lstsq(np.vander(t[rows], 3, increasing=True), draws[rows])[0]
    settings = {"method": "quantile", "prob": 1.0 - share if sign > 0 else share}
    size = array_stats.ess(chains[:, :, coordinate], chain_axis=0, draw_axis=1, **settings)
    return _End(coordinate, share, t, rows, path, share * min(float(size), len(draws)))


def _beyond(end, rng, draws, log_densities, log_density, size):
    """Return the tail beyond an end of the draws (n, d), by ``size`` of its draws, shifted by two mean excesses."""
    # Stratified along the end: neighbors differ by twice the variance within a stratum.
    chosen = end.rows[((np.arange(size) + rng.random(size)) * len(end.rows) / size).astype(int)]
    t = end.excesses[chosen]
    shift = _SHIFT * end.path[1] + np.outer((t + _SHIFT) ** 2 - t**2, end.path[2])
    values = np.array([log_density(place) for place in draws[chosen] + shift])
    # Each ratio cut off at one: a lower bound of the mass, as a share of the end's.
    ratios = np.exp(np.minimum(values - log_densities[chosen], 0.0))
    mass, beyond = ratios.mean(), (end.excesses >= _SHIFT).mean() / end.share
    outermost = float(draws[end.rows[0], end.coordinate])
    variance = end.size**2 * (np.diff(ratios) ** 2).mean() / (2.0 * size)
    # Of the effective draws at an end those that go far are about Poisson distributed.
    found = OpenEnd(end.coordinate, outermost, end.share * (mass - beyond))
    return _Tail(found, end.size * mass, end.size * beyond, variance)


def _errors(tails):
    """Return how many standard errors less is told than expected: the signed root of a deviance."""
    expected, told, variance = np.sum([tail[1:] for tail in tails] or [[0.0] * 3], axis=0)
    if told >= expected:
        return 0.0
    deviance = 2.0 * (expected - told + xlogy(told, told / expected))
    return math.sqrt(deviance / (1.0 + variance / expected))


_LOW_QUANTILE = 0.01  # quantile of the draws' log densities: points above it are in the highest-density region of 99 %
_NUM_NEAREST = 3  # draws, from each of which a valley must part a missed point: one alone may be across a bend
_FIRST_STRIDE = 0.3  # of the climbs, in units of the scales
_STRIDE_GROWTH, _STRIDE_DECAY = 1.5, 1.5**-0.25  # it stays where one step in five goes up (Rechenberg's rule)
_CLIMB_EVALUATIONS = 30  # evaluations for each dimension and climb


class KnownPlaces(NamedTuple):
    """Where a density was evaluated."""

    positions: np.ndarray  # (m, d)
    log_densities: np.ndarray  # (m,); not finite where it is zero or failed


def other_hills(
    places: KnownPlaces, log_density: LogDensity, scales: np.ndarray, budget: int, rng: np.random.Generator
) -> KnownPlaces:
    """Return points (m, d) near the tops of hills other than that of the highest place; often there are none.

    Two places are on one hill where the density half way between them is no lower than at the lower one (Ursem 1999).
    A banana may thus count as two hills, which is harmless if the chain visits both. Climbs begin with steps of a third
    of the scales (d,), rough spreads of the target. No climb begins that would exceed the budget of evaluations.
    """
    order = np.argsort(-np.where(np.isfinite(places.log_densities), places.log_densities, -np.inf))
    order = order[np.isfinite(places.log_densities[order])].tolist()
    hills, climbs = order[:1], []
    length = _CLIMB_EVALUATIONS * places.positions.shape[1]
    for i in order[1:]:
        if budget < length + len(hills):
            break
        position, level = places.positions[i], places.log_densities[i]
        apart = (places.positions[hills] - position) / scales
        by_distance = np.argsort((apart**2).sum(axis=1))
        for hill in np.take(hills, by_distance):
            budget -= 1
            if not log_density(0.5 * (position + places.positions[hill])) < level:  # no valley between them
                break
        else:
            hills.append(i)
            budget -= length
            climbs.append(_climb(position, level, log_density, scales, length, rng))
    tops, levels = [top for top, _ in climbs], [level for _, level in climbs]
    return KnownPlaces(np.reshape(tops, (len(tops), len(scales))), np.array(levels))


def _climb(position, level, log_density, scales, num_steps, rng):
    stride = _FIRST_STRIDE
    for _ in range(num_steps):
        proposal = position + stride * scales * rng.standard_normal(position.size)
        height = log_density(proposal)
        if height > level:
            position, level = proposal, height
            stride *= _STRIDE_GROWTH
        else:
            stride *= _STRIDE_DECAY
    return position, level


def missed(
    places: KnownPlaces, draws: np.ndarray, log_densities: np.ndarray, log_density: LogDensity, noise_sd: float = 0.0
) -> np.ndarray | None:
    """Return the most likely of the places that a chain has missed, (d,), or None. O(m n d), some calls for each.

    These are places on hills where no draw is: half way to the nearest draws the density is lower than at both ends, by
    more than two standard errors where each log density is an estimate with the standard deviation ``noise_sd``. On
    thin sheets that bend in many dimensions this is so of draws, too: then it tells nothing, and none is missed. The
    places were evaluated beforehand, not chosen by the chain. Its draws (n, d) may be thinned, but must all be from the
    target itself.
    """
    if len(draws) < _FEWEST or math.isnan(noise_sd):
        return None
    spreads = draws.std(axis=0)
    if not (spreads > 0.0).all():
        return None  # the chain has hardly moved; other warnings report that
    lowest, margin = np.quantile(log_densities, _LOW_QUANTILE), 2.0 * math.sqrt(2.0) * noise_sd

    def is_cut_off(position, level, own=None):
        distances = (((draws - position) / spreads) ** 2).sum(axis=1)
        if own is not None:
            distances[own] = np.inf
        nearest = np.argsort(distances)[:_NUM_NEAREST]
        return all(log_density(0.5 * (position + draws[k])) < min(level, log_densities[k]) - margin for k in nearest)

    for i in np.argsort(-places.log_densities):
        position, level = places.positions[i], places.log_densities[i]
        if level >= lowest and is_cut_off(position, level):
            some = range(0, len(draws), len(draws) // _FEWEST)
            return None if any(is_cut_off(draws[k], log_densities[k], k) for k in some) else position
    return None
