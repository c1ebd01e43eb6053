"""Coordinates in which a funnel is straight, so that one length scale suits all of it. Imports NumPy only.

In a funnel the scale of some coordinates depends on another, as that of effects on the logarithm of their standard
deviation. Scores then have tails so heavy that a discrepancy measures the funnel's neck alone, and any weight that
tames them there removes its power elsewhere. Divided by their conditional scale, the coordinates are as easy as a
normal distribution's. Any fixed smooth map keeps a Stein kernel valid, and this one depends on a few fitted numbers
only, as whitening does, so that tests keep their level. Without it, of 12 sets of exact draws of effects around a mean,
of eight schools and of a horseshoe, cut at a tenth (the horseshoe: a quarter) of one scale, at most 2 were rejected at
5 %; with it all of them.

A step divides some coordinates, the "driven" ones, by a scale that depends on others, their "drivers":

    x_i' = (x_i - m_i(x_free)) exp(-g_i),   g_i = a_i + sum_j (b_ij u_j + c_ij sqrt(1 + u_j^2)),
    u_j = (x_j - center_j) / spread_j,

m_i linear in the coordinates that the step leaves alone, among them the drivers j. Of a density p with scores s,

    s_i' = s_i exp(g_i),   s_j' = s_j + sum_i dg_i/dx_j (s_i (x_i - m_i) + 1),   s_k' += sum_i s_i dm_i/dx_k.

The scale is that of the scores: given the other coordinates, E s_i = 0 and E s_i^2 is the Fisher information.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["straighten"]

_FEWEST_DRAWS = 50  # with fewer, scales cannot be estimated
_MAX_ROUNDS = 10  # a coordinate may have several drivers, and drivers may be driven themselves
_EVIDENCE = 20.0  # twice the log-likelihood ratio; with 4 log d for all pairs, a false alarm in exp(10) of normal draws
_SMALLEST_SHARE = (
    0.05  # of the variance of log squared scores, so that coordinates keep their names where this is little
)
_FLOOR = 0.05  # added to squared scores before the logarithm, in medians: a score may happen to be zero
_GAIN = 10.0, 5.0  # nats by which all draws must come closer to a normal distribution: per step, and per coordinate
_MAX_LOG_SCALE = 50.0  # a coordinate whose scale changes by more is left alone
_BOUND = 3.0  # of coordinates in robust units, where drivers are looked for: one outlier must not look like one
_RIDGE = 1e-6  # of columns of length one
_MAX_ITERATIONS, _TOLERANCE = 20, 1e-3  # of the robust regression


class Step(NamedTuple):
    """One step of the map, see the module's docstring."""

    drivers: np.ndarray  # (m,) column numbers
    driven: np.ndarray  # (k,)
    free: np.ndarray  # (f,)
    center: np.ndarray  # (m,)
    spread: np.ndarray  # (m,)
    log_scale: np.ndarray  # (1 + 2 m, k): a, all b, all c
    constant: np.ndarray  # (k,)
    slopes: np.ndarray  # (f, k)


def straighten(draws: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d) in coordinates whose conditional scales are constant.

    Notes
    -----
    Greedy. A step is taken only where it lowers 1/2 log det E[s s'] + E log det dx'/dx, which by Stam's inequality is
    smallest where x' is normal, by more than chance explains, and 1/2 log det cov(x') - E log det dx'/dx, too, so that
    draws and scores agree: scores of the wrong draws must not bend the map. Otherwise draws and scores are returned
    unchanged, as for normal draws. O(n d^2) time a step.
    """
    n, d = draws.shape
    if d == 1 or n < max(_FEWEST_DRAWS, 2 * d + 1):
        return draws, scores
    base, drives = (draws, scores), np.zeros((d, d), dtype=bool)
    value, offset = _log_information(scores), 0.0  # how far from normal; the log determinant of all finished levels
    for _ in range(_MAX_ROUNDS):
        added = np.zeros_like(drives)
        driver = choose_drivers(draws, scores, drives)
        free = np.flatnonzero((driver < 0) & ~drives.any(axis=0))
        for j in np.unique(driver[driver >= 0]):
            driven = np.flatnonzero(driver == j)
            trial = choose_step(draws, scores, j, driven, free)
            gain = _log_information(scores) - trial.value
            agreed = trial.spread < _log_volume(draws)
            if agreed and n * gain > _GAIN[0] + _GAIN[1] * len(driven):
                value -= gain
                draws, scores = trial.draws, trial.scores
                added[j, trial.driven] = True
        if not added.any():
            if not drives.any():
                break
            # This level is finished; its drivers may be driven themselves, at the next level.
            base, offset, drives = (draws, scores), value - _log_information(scores), added
            continue
        # All scales and centers are fitted again, together: drivers beside the first one were noise in earlier fits.
        drives |= added
        for centered in (False, True):
            trial = _try_step(*base, drives, np.flatnonzero(~drives.any(axis=0)) if centered else free[:0])
            if offset + trial.value < value:
                draws, scores, value = trial.draws, trial.scores, offset + trial.value
    return draws, scores


class Tried(NamedTuple):
    """The result of a step."""

    driven: np.ndarray
    draws: np.ndarray
    scores: np.ndarray
    value: float  # how far from normal by the scores
    spread: float  # and by the draws


def choose_step(draws, scores, driver: int, driven: np.ndarray, free: np.ndarray) -> Tried:
    """Return the best of some steps with one driver.

    Without centers; with centers that depend on the free coordinates; and with the coordinates among these that the
    others are spread around. Given all effects, their mean has a narrow distribution in a funnel's neck, too, so that
    it seems to be driven, but it must not be divided. Scores show it: those of the mean and of its effects sum to
    nearly zero, and of such a sum the coordinate with the largest part is set free.
    """
    drives = np.zeros((draws.shape[1],) * 2, dtype=bool)
    drives[driver, driven] = True
    tried = [_try_step(draws, scores, drives, free[:0]), _try_step(draws, scores, drives, free)]
    while len(driven) > 1 and (len(tried) == 2 or tried[-1].value < tried[-2].value):
        pulled = tried[-1].scores[:, driven]
        length = np.sqrt((pulled**2).mean(axis=0))
        pulled = pulled / np.where(length > 0.0, length, 1.0)
        mean = np.abs(np.linalg.eigh(pulled.T @ pulled)[1][:, 0]).argmax()
        drives[driver, driven[mean]] = False
        free = np.append(free, driven[mean])
        driven = np.delete(driven, mean)
        tried.append(_try_step(draws, scores, drives, free))
    return min(tried, key=lambda one: one.value)


def _try_step(draws, scores, drives, free):
    moved, pulled, log_det = take_step(fit_step(draws, scores, drives, free), draws, scores)
    value, spread = _log_information(pulled) + log_det, _log_volume(moved) - log_det
    return Tried(np.flatnonzero(drives.any(axis=0)), moved, pulled, value, spread)


def choose_drivers(draws: np.ndarray, scores: np.ndarray, drives: np.ndarray | None = None) -> np.ndarray:
    """Return for each coordinate (d,) the one that its scale depends on most, -1 for none.

    A driver has none itself; of two that claim each other, the stronger claim wins. Those that ``drives`` (d, d) has
    as drivers (rows) or driven (columns) already stay what they are.
    """
    n, d = draws.shape
    center, spread = _robust(draws)
    u = (draws - center) / spread
    u /= np.sqrt(1.0 + (u / _BOUND) ** 2)
    linear = u - u.mean(axis=0)
    linear /= linear.std(axis=0)
    bent = np.sqrt(1.0 + linear**2)
    bent -= bent.mean(axis=0)
    bent -= linear * (linear * bent).mean(axis=0)
    bent /= np.maximum(bent.std(axis=0), np.finfo(float).tiny)  # two values only: no scale to fit
    sizes = _log_squares(scores)
    sizes -= sizes.mean(axis=0)
    variance = np.maximum((sizes**2).mean(axis=0), np.finfo(float).tiny)
    share = ((linear.T @ sizes / n) ** 2 + (bent.T @ sizes / n) ** 2) / variance
    np.fill_diagonal(share, 0.0)
    evidence = -n * np.log1p(-np.minimum(share, 1.0 - 1e-12))
    evidence[(evidence < _EVIDENCE + 4.0 * np.log(d)) | (share < _SMALLEST_SHARE)] = 0.0
    if drives is not None:
        evidence[:, drives.any(axis=1)] = 0.0
        evidence[drives.any(axis=0)] = 0.0
    driver = np.full(d, -1)
    is_driver = np.zeros(d, dtype=bool)
    for pair in np.argsort(-evidence, axis=None, kind="stable")[: np.count_nonzero(evidence)]:
        j, i = divmod(pair, d)
        if driver[i] < 0 and driver[j] < 0 and not is_driver[i]:
            driver[i], is_driver[j] = j, True
    return driver


def fit_step(draws: np.ndarray, scores: np.ndarray, drives: np.ndarray, free: np.ndarray) -> Step:
    """Return the step that makes scales the same at all values of their drivers.

    Scales by regression of log squared scores, repeated on what is left of them; centers so that the scores of the
    coordinates that are left alone are small, constant where ``free`` is empty. ``drives`` (d, d) says which coordinate
    (row) drives which (column).
    """
    drivers, driven = np.flatnonzero(drives.any(axis=1)), np.flatnonzero(drives.any(axis=0))
    center, spread = _robust(draws[:, drivers])
    basis, _ = _basis((draws[:, drivers] - center) / spread)
    log_scale = np.zeros((basis.shape[1], len(driven)))
    for k, i in enumerate(driven):
        own = np.flatnonzero(drives[drivers, i])
        rows = np.concatenate([[0], 1 + own, 1 + len(drivers) + own])
        log_scale[rows, k] = _fit_log_scale(basis[:, rows], scores[:, i])
    usable = np.abs(basis @ log_scale).max(axis=0) < _MAX_LOG_SCALE
    driven, log_scale = driven[usable], log_scale[:, usable]
    constant, slopes = _fit_centers(draws, scores, basis @ log_scale, drivers, driven, free)
    return Step(drivers, driven, free, center, spread, log_scale, constant, slopes)


def _fit_centers(draws, scores, log_scales, drivers, driven, free):
    """Return constants and slopes of the centers m_i, given the log scales (n, k) of the coordinates driven.

    Slopes by least squares of the scores that the free coordinates are left with. Constants from what draws and scores
    say together: of a normal distribution with scale e^g, x + e^(2 g) s is its center, at every draw. So the draws in
    the neck, which alone fix the centers as closely as is needed there, are not fitted: least squares of the draws, or
    of the scores that the drivers are left with, make the scores of as many draws nearly zero as there are centers, and
    a test of the same draws rejects too often.
    """
    slopes = np.zeros((len(free), len(driven)))
    others = np.flatnonzero(~np.isin(free, drivers))
    slopes[others] = -_least_squares(scores[:, driven], scores[:, free[others]]).T
    off = draws[:, driven] - draws[:, free] @ slopes
    lowest = log_scales.min(axis=0)
    weights = np.exp(2.0 * (lowest - log_scales))
    weights /= weights.sum(axis=0)
    pulled = np.exp(2.0 * log_scales) * scores[:, driven]
    middle, mean = (weights * off).sum(axis=0), (weights * pulled).sum(axis=0)
    variance = (weights * (pulled - mean) ** 2).sum(axis=0)
    # The scale is known up to a factor.
    factor = -(weights * (off - middle) * (pulled - mean)).sum(axis=0) / np.where(variance > 0.0, variance, 1.0)
    return middle + factor * mean, slopes


def _least_squares(columns, targets):
    length = np.sqrt((columns**2).sum(axis=0))
    length[length == 0.0] = 1.0
    columns = columns / length
    normal = columns.T @ columns + _RIDGE * np.eye(columns.shape[1])
    return np.linalg.solve(normal, columns.T @ targets) / length[:, None]


def take_step(step: Step, draws: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return draws and scores after the step, and the mean log determinant of its derivative."""
    drivers, driven, free = step.drivers, step.driven, step.free
    basis, slope = _basis((draws[:, drivers] - step.center) / step.spread)
    growth = basis @ step.log_scale
    off = draws[:, driven] - step.constant - draws[:, free] @ step.slopes
    moved, pulled = draws.copy(), scores.copy()
    moved[:, driven] = off * np.exp(-growth)
    pulled[:, driven] = scores[:, driven] * np.exp(growth)
    pulled[:, free] += scores[:, driven] @ step.slopes.T
    down = scores[:, driven] * off + 1.0
    linear, bent = step.log_scale[1 : 1 + len(drivers)], step.log_scale[1 + len(drivers) :]
    pulled[:, drivers] += (down @ linear.T + slope * (down @ bent.T)) / step.spread
    return moved, pulled, float(-growth.mean(axis=0).sum())


def _fit_log_scale(basis, scores):
    solve = np.linalg.pinv(basis)
    log_scale = np.zeros(basis.shape[1])
    for _ in range(_MAX_ITERATIONS):
        left = scores * np.exp(np.clip(basis @ log_scale, -_MAX_LOG_SCALE, _MAX_LOG_SCALE))
        change = -0.5 * solve @ _log_squares(left)
        change[0] = 0.0
        log_scale += change
        if np.abs(change).max() < _TOLERANCE:
            break
    log_scale[0] = -np.median(basis @ log_scale)
    return log_scale


def _basis(u):
    """Return 1, all u and all sqrt(1 + u^2) as columns, and the derivatives of the last."""
    bent = np.sqrt(1.0 + u**2)
    return np.column_stack([np.ones(len(u)), u, bent]), u / bent


def _robust(draws):
    """Return medians, and half of the width that holds 68 % around them: standard deviations of normal draws."""
    center = np.median(draws, axis=0)
    off = np.abs(draws - center)
    spread = np.quantile(off, 0.6827, axis=0)
    return center, np.where(spread > 0.0, spread, off.max(axis=0))


def _log_squares(scores):
    squares = scores**2
    floor = _FLOOR * np.median(squares, axis=0)
    return np.log(squares + np.maximum(floor, np.finfo(float).tiny))


def _log_volume(draws):
    """Return 1/2 log det cov(x)."""
    return _log_information(draws - draws.mean(axis=0))


def _log_information(scores):
    """Return 1/2 log det E[s s'], its directions without any score left out."""
    length = np.sqrt((scores**2).mean(axis=0))
    scaled, length = scores[:, length > 0.0] / length[length > 0.0], length[length > 0.0]
    matrix = scaled.T @ scaled / len(scores) + _RIDGE * np.eye(len(length))
    return 0.5 * np.linalg.slogdet(matrix)[1] + np.log(length).sum()
