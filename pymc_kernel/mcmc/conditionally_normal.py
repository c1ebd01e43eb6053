"""Coordinates in which, given one of them, the others are standard normal.

Funnels, hierarchies and bananas have no covariance that suits all of their parts, but given one coordinate, the driver,
the others are often nearly normal. With u the driver and w the others, in units of the draws, the log density is fitted
by

    h(u) + l(u)'w - w' (A + e B) w / 2,   l(u) = c_0 + c_1 u + c_2 u^2 + c_3 e,   e = exp(-r u),

where h is a quartic plus a multiple of e. For a driver and a rate r this is linear in its coefficients. In coordinates
v of w in which A + B is the unit matrix and B is diagonal, with shares b_i,

    z_i = p_i^(1/2) (v_i - l_i(u) / p_i),   p_i = 1 - b_i + b_i e,

is standard normal given u. A share is one in a funnel, zero in a banana, and between them for the effects of a
hierarchy that has data. A surrogate then learns what is left, in the coordinates (u, z).
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import lstsq
from scipy.optimize import minimize_scalar

from pymc_kernel.linalg import definite_cholesky, whiten
from pymc_kernel.mcmc.metropolis import shape_of
from pymc_kernel.scores.value_regression import curvature_of, trend_features

FARTHEST = 1e4  # in units of the draws: places beyond are left out
_MOST_ROWS = 2000  # evaluations that it is fitted to: twice as many as coefficients in 30 dimensions
_LOG_STEP = math.log(3.0)  # between rates that are tried; around the best of them a finer search follows
_LOG_RATES = _LOG_STEP * np.arange(3.0)  # for a standard deviation of the driver
_NEWTON_STEPS = 4  # for the rate: they double the digits where the fit is exact
_ROUNDING = 1e-10  # of features
_EXACT = 1e-12  # squared error in nats that is due to rounding
_LARGEST_EXPONENT = 200.0  # whose exponential has a finite square of a square


class ConditionallyNormal(NamedTuple):
    """The map between places x (n, d) and (u, z); its cost is O(n d^2)."""

    driver: int  # column of u
    others: np.ndarray  # (d - 1,) the other columns
    center: np.ndarray  # (d,) medians of the draws
    spread: float  # standard deviation of the driver
    to_unit: np.ndarray  # (d - 1, d - 1): v = (x - center) @ to_unit for the others
    from_unit: np.ndarray  # its inverse
    rate: float  # r
    share: np.ndarray  # (d - 1,) b
    slopes: np.ndarray  # (4, d - 1) coefficients of l for 1, u, u^2, e

    def straighten(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (u, z) and, but for a constant, the log determinant of the map at each row."""
        out = np.empty_like(x)
        out[:, self.driver] = (x[:, self.driver] - self.center[self.driver]) / self.spread
        mean, precision = self._given(out[:, self.driver])
        out[:, self.others] = np.sqrt(precision) * ((x - self.center)[:, self.others] @ self.to_unit - mean)
        return out, 0.5 * np.log(precision).sum(axis=1)

    def bend(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the same log determinant as ``straighten`` returns there."""
        out = np.empty_like(z)
        out[:, self.driver] = z[:, self.driver] * self.spread
        mean, precision = self._given(z[:, self.driver])
        out[:, self.others] = (mean + z[:, self.others] / np.sqrt(precision)) @ self.from_unit
        return out + self.center, 0.5 * np.log(precision).sum(axis=1)

    def pull_back(self, x: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the scores in x of a density with ``scores`` (n, d) at the straightened x."""
        out = np.empty_like(x)
        u = (x[:, self.driver] - self.center[self.driver]) / self.spread
        (mean, precision), e = self._given(u), _exponential(u, self.rate)
        change = -self.rate * self.share * e  # of the precision, with u
        powers = np.concatenate([np.zeros_like(e), np.ones_like(e), 2.0 * u[:, None], -self.rate * e], axis=1)
        mean_change = (powers @ self.slopes - mean * change) / precision
        off = (x - self.center)[:, self.others] @ self.to_unit - mean
        pulled = scores[:, self.others] * np.sqrt(precision)
        own = (pulled * (0.5 * change / precision * off - mean_change) + 0.5 * change / precision).sum(axis=1)
        out[:, self.driver] = (scores[:, self.driver] + own) / self.spread
        out[:, self.others] = pulled @ self.to_unit.T
        return out

    def _given(self, u):
        """Return means and precisions (n, d - 1) of v."""
        e = _exponential(u, self.rate)
        precision = 1.0 - self.share + self.share * e
        return np.concatenate([_powers(u, 2), e], axis=1) @ self.slopes / precision, precision


def fitted(
    draws: np.ndarray, places: np.ndarray, values: np.ndarray, start: ConditionallyNormal | None = None
) -> ConditionallyNormal | None:
    """Return the map fitted to values (m,) of a log density at places (m, d), with the driver of ``start`` if given.

    None where a quadratic explains the values as well, by the Bayesian information criterion, and where the map brings
    the draws (n, d) no closer to a normal distribution. O(m d^4) time, and O(m d^2) memory.
    """
    d, center, spread = draws.shape[1], np.median(draws, axis=0), draws.std(axis=0)
    near = np.flatnonzero((np.abs(places - center) < FARTHEST * spread).all(axis=1))
    near = near[np.linspace(0, len(near) - 1, min(len(near), _MOST_ROWS)).astype(int)]
    if d == 1 or len(near) < 2 * (d + 1) * (d + 2) or shape_of(draws, None) is None:
        return None
    scaled, values = ((places - center) / spread)[near], values[near] - values.max()
    # Features grow with the fourth power of a distance, so with these weights no place far out outweighs all others,
    # and of two places the deeper one counts less: log densities of failed solutions may be anything.
    weights = ((1.0 - values / (2.0 * d)) * (1.0 + (scaled**2).mean(axis=1)))[:, None] ** -2.0
    targets = weights[:, 0] * values
    plain = weights * trend_features(scaled)
    if start is None:
        driver, rate = _driver_and_rate(scaled, np.corrcoef(draws.T), weights, plain, targets)
    else:
        driver, rate = start.driver, start.rate * spread[start.driver] / start.spread
    others = np.delete(np.arange(d), driver)
    score, rate, coefficients = _with_best_rate(scaled[:, driver], scaled[:, others], rate, weights, targets)
    if score >= _least_squares(plain, targets)[0]:
        return None
    form = _normal_form(coefficients, (draws - center) / spread, driver, others, rate)
    if form is None:
        return None
    share, to_unit, from_unit, slopes = form
    to_unit, from_unit = to_unit / spread[others, None], from_unit * spread[others]
    found = ConditionallyNormal(driver, others, center, spread[driver], to_unit, from_unit, rate, share, slopes)
    straight, log_det = found.straighten(draws)
    gain = log_det.mean() - np.log(spread[driver]) + np.linalg.slogdet(to_unit)[1]
    log_dets = [np.linalg.slogdet(np.cov(some.T))[1] for some in (draws, straight)]
    return found if 0.5 * (log_dets[1] - log_dets[0]) < gain else None


def _driver_and_rate(scaled, correlations, weights, plain, targets):
    """Return the column and the rate that explain most of what a quadratic leaves, with squares of the others alone."""
    basis = np.linalg.qr(plain)[0]
    left = targets - basis @ (basis.T @ targets)

    def score_of(log_rate, sign, u, w):
        e = _exponential(u, sign * math.exp(log_rate))
        features = weights * np.concatenate([_powers(u, 4)[:, 3:], w * (u**2)[:, None], e, w * e, w**2 * e], axis=1)
        return _least_squares(features - basis @ (basis.T @ features), left)[0]

    tried = []
    for j in range(scaled.shape[1]):
        others = np.delete(np.arange(scaled.shape[1]), j)
        u, w = scaled[:, j], whiten(scaled[:, others], 0.0, np.linalg.cholesky(correlations[np.ix_(others, others)]))
        tried += [(score_of(r, sign, u, w), j, sign, r, w) for sign in (1.0, -1.0) for r in _LOG_RATES]
    _, j, sign, log_rate, w = min(tried, key=lambda one: one[0])
    around = log_rate - _LOG_STEP, log_rate + _LOG_STEP
    return j, sign * math.exp(minimize_scalar(score_of, args=(sign, scaled[:, j], w), bounds=around).x)


def _with_best_rate(u, w, rate, weights, targets):
    """Return criterion, rate and coefficients of the fit, the rate by steps of Gauss and Newton."""
    scaling = trend_features(w)
    pairs = scaling[:, 1 + w.shape[1] :]
    steady = np.concatenate([_powers(u, 4), w, w * u[:, None], w * (u**2)[:, None], pairs], axis=1)

    def fit(rate, *more):
        return _least_squares(
            weights * np.concatenate([steady, scaling * _exponential(u, rate), *more], axis=1), targets
        )

    found = []
    for _ in range(_NEWTON_STEPS):
        score, coefficients = fit(rate)
        found.append((score, rate, coefficients))
        derivative = -u[:, None] * _exponential(u, rate) * (scaling @ coefficients[steady.shape[1] :])[:, None]
        rate += np.clip(fit(rate, derivative)[1][-1], -0.5 * abs(rate), 0.5 * abs(rate))
    return min(found, key=lambda one: one[0])


def _normal_form(coefficients, draws, driver, others, rate):
    """Return shares, the map of the others to v, its inverse, and slopes, of draws in their units; None without one."""
    c, pairs = len(others), len(others) * (len(others) + 1) // 2
    _, steady, constant, _, scaling, exponential = np.split(coefficients, np.cumsum([5, 3 * c, pairs, 1, c]))
    constant, exponential = -curvature_of(constant, c), -curvature_of(exponential, c)
    factor = definite_cholesky(constant + exponential)
    if factor is None:
        return None
    inverse = np.linalg.inv(factor)
    share, vectors = np.linalg.eigh(inverse @ exponential @ inverse.T)
    share, to_unit, from_unit = np.clip(share, 0.0, 1.0), factor @ vectors, vectors.T @ inverse
    slopes = np.concatenate([steady.reshape(3, c), scaling[None]]) @ from_unit.T
    u, v, whole = draws[:, driver], draws[:, others] @ to_unit, share == 1.0
    # What e does not scale has no center where its share is zero: there l is the nearest multiple of e.
    slopes[3, whole] += (_powers(u, 2) @ slopes[:3, whole]).mean(axis=0) / _exponential(u, rate).mean()
    slopes[:3, whole] = 0.0
    # What e scales has its center among the draws: where its share is zero, fits say anything.
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes[3] = share * np.clip(np.where(share > 0.0, slopes[3] / share, 0.0), v.min(axis=0), v.max(axis=0))
    return share, to_unit, from_unit, slopes


def _exponential(u, rate):
    return np.exp(np.clip(-rate * u, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))[:, None]


def _powers(u, largest):
    return u[:, None] ** np.arange(largest + 1)


def _least_squares(features, targets):
    """Return the Bayesian information criterion (but for a constant) and the coefficients."""
    size = np.sqrt((features**2).mean(axis=0))
    size[size == 0.0] = 1.0
    coefficients, _, rank, _ = lstsq(features / size, targets, cond=_ROUNDING, lapack_driver="gelsy")
    error = ((targets - features @ (coefficients / size)) ** 2).mean()
    return len(targets) * math.log(error + _EXACT) + rank * math.log(len(targets)), coefficients / size
