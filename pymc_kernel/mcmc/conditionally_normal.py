"""Coordinates in which, given one of them, the others are standard normal.

Funnels, hierarchies, bananas and products have no covariance that suits all of their parts, but given one coordinate,
the driver, the others are often nearly normal. With u the driver and w the others, in units of the draws, the log
density is fitted by

    h(u) + l(u)'w - w' (A + e B) w / 2,   l(u) = c_0 + c_1 u + c_2 u^2 + c_3 u^3 + c_4 e,

where h has twice the degree of l, plus a multiple of e, and of the logarithm of e where the driver is a scale. The
driver may be the logarithm of a scale of the others, a factor beside them, or their scale itself: e is exp(-r u),
(1 + r u)^2 or (1 + r u)^-2. The one is taken that brings the others closest to a normal distribution; c_3 is zero where
a square explains as much. For a driver, one of these and a rate r this is linear in its coefficients. In coordinates v
of w in which A + B is the unit matrix and B is diagonal, with shares b_i,

    z_i = p_i^(1/2) (v_i - l_i(u) / p_i),   p_i = 1 - b_i + b_i e,

is standard normal given u. A share is one in a funnel, zero in a banana, and between them for the effects of a
hierarchy that has data. A surrogate then learns what is left, in the coordinates (u, z); in the place of a driver that
is a scale stands log(1 + r u) / r, as a density ends where a scale is zero.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.linalg import lstsq
from scipy.optimize import minimize_scalar

from pymc_kernel.linalg import definite_cholesky, whiten
from pymc_kernel.mcmc.metropolis import shape_of
from pymc_kernel.scores.value_regression import curvature_of, trend_features

FARTHEST = 1e4  # in units of the draws: places beyond are left out
_DEEPEST = 1e3  # times 2 d nats below the highest value: weights are a millionth there, and a scale may be negative
_MOST_ROWS = 2000  # evaluations that it is fitted to: twice as many as coefficients in 30 dimensions
_POWERS = (0, 2, -2)
_POWERS_OF = {2: _POWERS, 3: (0,)}  # degree of l -> powers of e: along a cube the others have one scale
_LIKELY = 3  # drivers that rates are tried for: of 34 fits to known shapes the right one was first in 33, second in one
_LOG_STEP = math.log(3.0)  # between rates that are tried; around the best of them a finer search follows
_LOG_RATES = _LOG_STEP * np.arange(3.0)  # for a standard deviation of the driver
_ROUGH = 0.1  # tolerance of a log rate before the steps
_MOST_STEPS = 12  # for the rate, each by at most the one between those that are tried
_LEAST_CHANGE = 1e-4  # of the rate, relative: after this step it has twice as many digits where the fit is exact
_ROUNDING = 1e-10  # of features
_EXACT = 1e-12  # squared error in nats that is due to rounding
_LARGEST_EXPONENT = 150.0  # whose exponential has a finite square of a square
_SMALLEST_BASE = math.exp(-0.5 * _LARGEST_EXPONENT)  # of a scale, whose e is the square of its inverse


class Scaling(NamedTuple):
    """The function e of the driver that the precision of the others grows with."""

    rate: float  # r
    power: int  # of 1 + r u; 0 stands for exp(-r u)

    def at(self, u: np.ndarray) -> np.ndarray:
        """Return e (n, 1) at u (n,)."""
        if self.power == 0:
            return np.exp(np.clip(-self.rate * u, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))[:, None]
        return self._base(u)[:, None] ** self.power

    def slope(self, u: np.ndarray) -> np.ndarray:
        """Return the derivative of e by u, (n, 1)."""
        return self.rate * (self.power * self._base(u)[:, None] ** (self.power - 1) if self.power else -self.at(u))

    @property
    def end_rate(self) -> float:
        """The rate k of a driver that is a scale, whose density ends where 1 + k u is zero; zero of others."""
        return self.rate if self.power < 0 else 0.0

    def log_base(self, u: np.ndarray) -> np.ndarray:
        """Return the logarithm (n,) of 1 + k u."""
        return np.log(np.maximum(1.0 + self.end_rate * u, _SMALLEST_BASE))

    def _base(self, u):
        base = 1.0 + self.rate * u
        return np.maximum(base, _SMALLEST_BASE) if self.power < 0 else base


class ConditionallyNormal(NamedTuple):
    """The map between places x (n, d) and (u, z); its cost is O(n d^2)."""

    driver: int  # column of u
    others: np.ndarray  # (d - 1,) the other columns
    center: np.ndarray  # (d,) medians of the draws
    spread: float  # standard deviation of the driver
    to_unit: np.ndarray  # (d - 1, d - 1): v = (x - center) @ to_unit for the others
    from_unit: np.ndarray  # its inverse
    scaling: Scaling  # e
    share: np.ndarray  # (d - 1,) b
    slopes: np.ndarray  # (5, d - 1) coefficients of l for 1, u, u^2, u^3, e
    log_unit: float  # log determinant of the map from x to u and v

    @property
    def kind(self) -> tuple[int, int]:
        """Driver and power: between maps of one kind what was learned in their coordinates carries over."""
        return self.driver, self.scaling.power

    def straighten(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (u, z) and the log determinant of the map at each row.

        Beyond the zero of a scale, where the map does not go, it is minus infinity.
        """
        out = np.empty_like(x)
        u = (x[:, self.driver] - self.center[self.driver]) / self.spread
        mean, precision = self._given(u)
        log_base, k = self.scaling.log_base(u), self.scaling.end_rate
        out[:, self.driver] = log_base / k if k else u
        out[:, self.others] = np.sqrt(precision) * ((x - self.center)[:, self.others] @ self.to_unit - mean)
        log_det = self.log_unit + 0.5 * np.log(precision).sum(axis=1) - log_base
        return out, np.where(1.0 + k * u <= 0.0, -np.inf, log_det)

    def bend(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the same log determinant as ``straighten`` returns there."""
        out, k = np.empty_like(z), self.scaling.end_rate
        log_base = k * z[:, self.driver]
        u = np.expm1(log_base) / k if k else z[:, self.driver]
        out[:, self.driver] = u * self.spread
        mean, precision = self._given(u)
        out[:, self.others] = (mean + z[:, self.others] / np.sqrt(precision)) @ self.from_unit
        return out + self.center, self.log_unit + 0.5 * np.log(precision).sum(axis=1) - log_base

    def pull_back(self, x: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the scores in x of a density with ``scores`` (n, d) at the straightened x."""
        out = np.empty_like(x)
        u = (x[:, self.driver] - self.center[self.driver]) / self.spread
        (mean, precision), slope = self._given(u), self.scaling.slope(u)
        change = self.share * slope  # of the precision, with u
        powers = np.concatenate([np.zeros_like(slope), _powers(u, 2) * [1.0, 2.0, 3.0], slope], axis=1)
        mean_change = (powers @ self.slopes - mean * change) / precision
        off = (x - self.center)[:, self.others] @ self.to_unit - mean
        pulled = scores[:, self.others] * np.sqrt(precision)
        own = (pulled * (0.5 * change / precision * off - mean_change) + 0.5 * change / precision).sum(axis=1)
        straight = scores[:, self.driver] - self.scaling.end_rate
        out[:, self.driver] = (straight * np.exp(-self.scaling.log_base(u)) + own) / self.spread
        out[:, self.others] = pulled @ self.to_unit.T
        return out

    def _given(self, u):
        """Return means and precisions (n, d - 1) of v."""
        e = self.scaling.at(u)
        precision = 1.0 - self.share + self.share * e
        return np.concatenate([_powers(u, 3), e], axis=1) @ self.slopes / precision, precision


def fitted(
    draws: np.ndarray, places: np.ndarray, values: np.ndarray, start: ConditionallyNormal | None = None
) -> ConditionallyNormal | None:
    """Return the map fitted to values (m,) of a log density at places (m, d), of the kind of ``start`` if given.

    None where a quadratic explains the values as well, by the Bayesian information criterion, and where the map brings
    the draws (n, d) no closer to a normal distribution. O(m d^4) time, and O(m d^2) memory.
    """
    d, center, spread = draws.shape[1], np.median(draws, axis=0), draws.std(axis=0)
    depths = 1.0 + (values.max() - values) / (2.0 * d)
    near = np.flatnonzero((np.abs(places - center) < FARTHEST * spread).all(axis=1) & (depths < _DEEPEST))
    some = np.linspace(0, len(near) - 1, min(len(near), _MOST_ROWS)).astype(int)
    if d == 1 or len(some) < 2 * (d + 1) * (d + 2) or shape_of(draws, None) is None:
        return None
    scaled_draws, everywhere = (draws - center) / spread, (places[near] - center) / spread
    ends = np.concatenate([scaled_draws, everywhere])
    ends = np.array([ends.min(axis=0), ends.max(axis=0)])
    scaled, rows = everywhere[some], near[some]
    # Features grow with the fourth power of a distance (of a cube with the sixth), so with these weights no place far
    # out outweighs all others, and of two places the deeper one counts less: failed solutions may have any log density.
    weights = (depths[rows] * (1.0 + (scaled**2).mean(axis=1)))[:, None] ** -2.0
    targets = weights[:, 0] * (values[rows] - values.max())
    plain = weights * trend_features(scaled)
    basis = np.linalg.qr(plain)[0]
    left = _without(basis, targets)

    def score_of(*features):  # of what a quadratic leaves
        return _least_squares(_without(basis, weights * np.concatenate(features, axis=1)), left)[0]

    drivers, powers = (range(d), _POWERS) if start is None else ([start.driver], [start.scaling.power])
    correlations, of_quadratic, fits, found = np.corrcoef(draws.T), _least_squares(plain, targets)[0], [], []
    terms = {driver: _terms(scaled, driver, correlations) for driver in drivers}

    def first_score(driver):
        # With squares of the others alone, which for a driver are nearly of its first or second degree.
        u, w, own = terms[driver]
        return score_of(own, w**2 * u, w**2 * u**2)

    for driver in sorted(drivers, key=first_score)[:_LIKELY]:
        scalings = _scalings(*terms[driver], score_of, ends[:, driver], powers)
        for degree, its_powers in _POWERS_OF.items():
            regression = _Regression(scaled, driver, weights, targets, degree)
            suited = [scaling for scaling in scalings if scaling.power in its_powers]
            fits += [(regression.fit(scaling)[0], scaling, driver, regression) for scaling in suited]
    for power in powers:
        of_degrees = []
        for degree in (degree for degree, its_powers in _POWERS_OF.items() if power in its_powers):
            likely = [fit for fit in fits if (fit[1].power, fit[3].degree) == (power, degree)]
            _, scaling, driver, regression = min(likely, key=lambda fit: fit[0])
            of_degrees.append((*regression.with_best_rate(scaling, ends[:, driver]), driver, degree))
        score, scaling, coefficients, driver, degree = min(of_degrees, key=lambda fit: fit[0])
        form = _normal_form(coefficients, degree, scaled_draws, driver, scaling, center, spread)
        if form is not None and score < of_quadratic:
            found.append((_gain(form, draws), form))
    gain, best = max(found, key=lambda one: one[0], default=(0.0, None))
    return best if gain > 0.0 else None


def _gain(found, draws):
    """Return by how many nats draws are nearer to a normal distribution with straightened others beside the driver."""
    straight, log_det = found.straighten(draws)
    u = (draws[:, found.driver] - found.center[found.driver]) / found.spread
    straight[:, found.driver] = u
    before, after = (np.linalg.slogdet(np.cov(x.T))[1] for x in (draws, straight))
    return (log_det + found.scaling.log_base(u)).mean() - 0.5 * (after - before)


def _terms(scaled, driver, correlations):
    """Return driver u (m, 1), others (m, d - 1) uncorrelated, and features of the driver's density and of bananas."""
    others = np.delete(np.arange(scaled.shape[1]), driver)
    u = scaled[:, driver, None]
    w = whiten(scaled[:, others], 0.0, np.linalg.cholesky(correlations[np.ix_(others, others)]))
    return u, w, np.concatenate([u**3, u**4, w * u**2], axis=1)


def _scalings(u, w, own, score_of, ends, powers):
    """Return the scaling of each power that explains most beside a driver."""

    def scaling_of(log_rate, sign, power):
        rate = math.exp(log_rate)
        if power < 0:  # the scale is zero beyond the farthest place
            rate = 1.0 / (rate**power + max(-sign * ends))
        return Scaling(sign * rate, power)

    def score(log_rate, sign, power):
        e = scaling_of(log_rate, sign, power).at(u[:, 0])
        return score_of(own, e, w * e, w**2 * e)

    found = []
    for power in powers:
        log_rate, sign = min(product(_LOG_RATES, (1.0, -1.0)), key=lambda one: score(*one, power))
        around = log_rate - _LOG_STEP, log_rate + _LOG_STEP
        best = minimize_scalar(score, args=(sign, power), bounds=around, options={"xatol": _ROUGH})
        found.append(scaling_of(best.x, sign, power))
    return found


class _Regression:
    """The log density at scaled places (m, d), given a driver."""

    def __init__(self, scaled, driver, weights, targets, degree):
        u, w = scaled[:, driver, None], np.delete(scaled, driver, axis=1)
        self.u, self.num_others, self.weights, self.targets = u[:, 0], w.shape[1], weights, targets
        self.degree = degree
        self.scaled_by_e = trend_features(w)
        pairs = self.scaled_by_e[:, scaled.shape[1] :]
        along = (w * u**k for k in range(degree + 1))
        self.steady = np.concatenate([_powers(u[:, 0], 2 * degree), *along, pairs], axis=1)
        self._basis = np.linalg.qr(weights * self.steady)[0]
        self._left = _without(self._basis, targets)

    def features(self, scaling):
        """Return what a scaling adds to the steady ones."""
        new = self.scaled_by_e * scaling.at(self.u)
        if scaling.power > 0:
            new[:, : 1 + self.num_others] = 0.0  # steady ones have the same
        return np.concatenate([new, scaling.log_base(self.u)[:, None]], axis=1)

    def fit(self, scaling, *more):
        """Return the criterion, and the coefficients of what is not steady."""
        features = self.weights * np.concatenate([self.features(scaling), *more], axis=1)
        return _least_squares(_without(self._basis, features), self._left)

    def with_best_rate(self, scaling, ends):
        """Return criterion, scaling and all coefficients of the best fit, the rate by steps of Gauss and Newton.

        ``ends`` are all values of the driver; of a scale not the rate is varied, but how far beyond them it is zero.
        """
        sign, found = np.sign(scaling.rate), []
        farthest = max(-sign * ends) if scaling.power < 0 else 0.0
        for _ in range(_MOST_STEPS):
            score, coefficients = self.fit(scaling)
            found.append((score, scaling))
            by_log_rate = self.u * scaling.slope(self.u)[:, 0] * (self.scaled_by_e @ coefficients[:-1])
            by_log_rate += coefficients[-1] * (1.0 - np.exp(-scaling.log_base(self.u)))
            beyond = 1.0 / abs(scaling.rate) - farthest
            change = self.fit(scaling, -beyond * abs(scaling.rate) * by_log_rate[:, None])[1][-1]
            beyond *= math.exp(np.clip(change, -_LOG_STEP, _LOG_STEP))
            scaling = scaling._replace(rate=sign / (farthest + beyond))
            if abs(change) < _LEAST_CHANGE:
                break
        else:  # steps need not converge where places are next to the zero of a scale
            scaling = min(found, key=lambda one: one[0])[1]
        features = np.concatenate([self.steady, self.features(scaling)], axis=1)
        score, coefficients = _least_squares(self.weights * features, self.targets)
        return score, scaling, coefficients


def _without(basis, columns):
    """Return what an orthonormal basis leaves of columns."""
    return columns - basis @ (basis.T @ columns)


def _normal_form(coefficients, degree, draws, driver, scaling, center, spread):
    """Return the map of a regression for scaled draws (n, d); None without one."""
    others = np.delete(np.arange(draws.shape[1]), driver)
    u, w, c, pairs = draws[:, driver], draws[:, others], len(others), len(others) * (len(others) + 1) // 2
    parts = np.split(coefficients, np.cumsum([2 * degree + 1, (degree + 1) * c, pairs, 1, c, pairs]))
    _, steady, constant, _, scaled, exponential, _ = parts
    constant, exponential = -curvature_of(constant, c), -curvature_of(exponential, c)
    factor = definite_cholesky(constant + exponential)
    if factor is None:
        return None
    inverse = np.linalg.inv(factor)
    share, vectors = np.linalg.eigh(inverse @ exponential @ inverse.T)
    share, to_unit, from_unit = np.clip(share, 0.0, 1.0), factor @ vectors, vectors.T @ inverse
    unused = np.zeros((3 - degree, c))
    slopes = np.concatenate([steady.reshape(degree + 1, c), unused, scaled[None]]) @ from_unit.T
    v, whole = w @ to_unit, share == 1.0
    # What e does not scale has no center where its share is zero: there l is the nearest multiple of e.
    slopes[-1, whole] += (_powers(u, 3) @ slopes[:-1, whole]).mean(axis=0) / scaling.at(u).mean()
    slopes[:-1, whole] = 0.0
    # What e scales has its center among the draws: where its share is zero, fits say anything.
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes[-1] = share * np.clip(np.where(share > 0.0, slopes[-1] / share, 0.0), v.min(axis=0), v.max(axis=0))
    to_unit, from_unit = to_unit / spread[others, None], from_unit * spread[others]
    log_unit = np.linalg.slogdet(to_unit)[1] - math.log(spread[driver])
    unit = driver, others, center, spread[driver], to_unit, from_unit
    return ConditionallyNormal(*unit, scaling, share, slopes, log_unit)


def _powers(u, largest):
    return u[:, None] ** np.arange(largest + 1)


def _least_squares(features, targets):
    """Return the Bayesian information criterion (but for a constant) and the coefficients."""
    size = np.sqrt((features**2).mean(axis=0))
    size[size == 0.0] = 1.0
    coefficients, _, rank, _ = lstsq(features / size, targets, cond=_ROUNDING, lapack_driver="gelsy")
    error = ((targets - features @ (coefficients / size)) ** 2).mean()
    return len(targets) * math.log(error + _EXACT) + rank * math.log(len(targets)), coefficients / size
