"""Means, log variances and coefficients one after another, each by regression with evidence for blocks of features."""

from typing import NamedTuple

import numpy as np
from scipy.special import huber

from pymc_kernel.kernels.points import MAD_TO_SD
from pymc_kernel.likelihood_free.learned_likelihood.evidence import fit_blocks, row_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.model import Weights, triangle_rows
from pymc_kernel.likelihood_free.learned_likelihood.summaries import winsorized

_REGULAR = 4.0  # standard deviations from which on the weight of a residual falls
LOG_CHI = -1.2704  # mean of the log of a chi-square variable of one degree
_VARIANCE_OF_LOG = 2.0  # inverse Fisher information of a log variance from one residual
_VARIANCE_OF_LOG_CHI = np.pi**2 / 2.0
_REWEIGHTED = 2  # times that means are fitted again
_MAX_SCORING = 8
SOME_CASES = 2000  # by which maps and metrics are chosen
_CASES_FOR_COEFFICIENTS = 20_000
_MAX_FOR_COEFFICIENTS = 400


class Design:
    """Whitened features of training points, and their weighted Gram matrices, summed over blocks of rows."""

    def __init__(self, features: FeatureMap, z: np.ndarray):
        self.map = features
        self.whitening, self.blocks = features.whitened()
        self.sizes = np.array(list(self.blocks.values()))
        self.values = features(z) @ self.whitening
        self._plain = None

    def raw(self, weights: Weights) -> Weights:
        """Return the weights of the features before whitening."""
        c = len(weights.coefficients)
        end = np.flatnonzero(self.whitening[:, :c].any(axis=1))[-1] + 1
        means, log_sd, log_rest = (self.whitening @ part for part in (weights.means, weights.log_sd, weights.log_rest))
        return Weights(means, log_sd, self.whitening[:end, :c] @ weights.coefficients, log_rest)

    def plain_gram(self, weights) -> np.ndarray:
        """Return the Gram matrix with the case weights alone; it is computed once."""
        if self._plain is None:
            self._plain = self.gram(weights)
        return self._plain

    def gram(self, weights, columns=slice(None)) -> np.ndarray:
        """Return the weighted Gram matrix (p, p); if indices of ``columns`` are given, with zeros for all others."""
        total = 0.0
        for block in row_blocks(len(self.values)):
            part = self.values[block, columns] * np.sqrt(weights[block, None])
            total = total + part.T @ part
        p = self.values.shape[1]
        out, chosen = np.zeros((p, p)), np.arange(p)[columns]
        out[np.ix_(chosen, chosen)] = total
        return out

    def of_features(self, precisions) -> np.ndarray:
        """Return the precisions (p,) of features from those (b,) of their blocks; zero for the constant."""
        return np.repeat(np.append(0.0, precisions), np.append(1, self.sizes))


class Precisions(NamedTuple):
    """Prior precisions of b blocks of features, (q, b) each; infinite where a block is left out."""

    means: np.ndarray
    log_sd: np.ndarray
    log_rest: np.ndarray


class StagedFit(NamedTuple):
    """The result of the stages: weights of whitened features, and the prior precisions of their blocks."""

    design: Design
    weights: Weights
    precisions: Precisions
    coefficient_penalties: np.ndarray  # (c, q (q - 1) / 2)
    noise: np.ndarray  # (n, q), residuals with means that were learned without them


def fit_stages(z, values, weights, rng, sizes, metric=None, before: Precisions | None = None) -> StagedFit:
    """Return the fit to standardized parameters ``z`` (n, d) and values (n, q) with case weights (n,) of mean one.

    The ``metric`` and the precisions ``before`` may come from a fit to other cases of the same simulator; this fit
    then starts from them, with the same blocks in use.
    """
    (n, d), q = z.shape, values.shape[1]
    num_knots, num_centers = sizes(n, d)
    metric = learn_metric(z, values, weights, rng, num_knots, num_centers) if metric is None else metric
    design = Design(make_features(z, rng, num_knots, num_centers, metric), z)
    num_blocks = len(design.sizes)
    if before is None or before.means.shape[1] != num_blocks:
        unknown = [None] * q
        before = Precisions(unknown, unknown, unknown)
    found = [_fit_moments(design, values[:, j], weights, before.means[j], before.log_sd[j]) for j in range(q)]
    *columns, of_means, of_log_sd = zip(*found, strict=True)
    means, log_sd, leave_out = (np.stack(column, axis=1) for column in columns)
    scaled = leave_out * np.exp(-design.values @ log_sd)
    coefficients, penalties = fit_coefficients(design, scaled, weights)
    entries = design.values[:, : len(coefficients)] @ coefficients
    rest, log_rest, of_log_rest = scaled.copy(), np.zeros(means.shape), np.full((q, num_blocks), np.inf)
    for j, row in triangle_rows(q):
        rest[:, j] -= (entries[:, row] * scaled[:, :j]).sum(axis=1)
        log_rest[:, j], of_log_rest[j] = fit_log_sd(design, rest[:, j], weights, before.log_rest[j])
    noise = rest * np.exp(-design.values @ log_rest)
    precisions = Precisions(np.stack(of_means), np.stack(of_log_sd), of_log_rest)
    return StagedFit(design, Weights(means, log_sd, coefficients, log_rest), precisions, penalties, noise)


def learn_metric(z, values, weights, rng, num_knots, num_centers):
    """Return the metric of the joint features, learned from some of the cases."""
    metric, responses = None, winsorized(values)
    for _ in range(2):
        some = rng.choice(len(z), min(len(z), SOME_CASES), replace=False)
        rough = Design(make_features(z[some], rng, num_knots, min(num_centers, len(some) // 10), metric), z[some])
        means, log_sd = np.zeros((2, rough.values.shape[1], values.shape[1]))
        for j in range(values.shape[1]):
            fit, leverage = _fit_mean(rough, responses[some, j], weights[some], None, True)
            rest = (responses[some, j] - rough.values @ fit.weights) / np.maximum(1.0 - leverage, 0.05)
            means[:, j] = fit.weights
            log_sd[0, j] = 0.5 * np.log(MAD_TO_SD**2 * np.median(rest**2) + 1e-300)
            if metric is not None:
                log_sd[:, j] = fit_log_sd(rough, rest, weights[some])[0]
        metric = gradient_metric(rough, z[some], means, log_sd)
    return metric


def _fit_moments(design, values, weights, start, log_sd_start):
    """Return weights of mean and log spread, leave-one-out residuals, and both precisions for one summary (n,).

    Extreme values may be errors or follow a long-tailed parameter, so first fits with and without limits compete.
    """
    first = winsorized(values)
    starts = [first] if start is not None or (first == values).all() else [first, values]
    found = [_moments_from(one, design, values, weights, start, log_sd_start) for one in starts]
    return found[0] if len(found) == 1 else min(found, key=lambda one: _loss(design.values @ one[1], one[2], weights))


def _loss(log_spread, rest, weights):
    """Return Huber's loss of residuals and their spreads, which is quadratic where residuals are regular."""
    return weights @ (log_spread + huber(_REGULAR, rest * np.exp(-log_spread)))


def _moments_from(response, design, values, weights, start, log_sd_start):
    """Return the same, from a first fit to the ``response`` (n,)."""
    case, is_first = weights, start is None
    for number in range(_REWEIGHTED + 1):
        fit, leverage = _fit_mean(design, response, case, start, number == 0)
        rest = (values - design.values @ fit.weights) / np.maximum(1.0 - leverage, 0.05)
        log_sd, log_sd_start = fit_log_sd(design, rest, weights, log_sd_start)
        spread = np.exp(design.values @ log_sd)
        case = weights * np.minimum(1.0, _REGULAR * spread / np.maximum(np.abs(rest), 1e-300)) / spread**2
        case = case / case.mean()
        # With the spread known, blocks that were left out may enter again.
        again = np.where(np.isfinite(fit.precisions), fit.precisions, np.nan)
        start, response = again if number == 0 and is_first else fit.precisions, values
    return fit.weights, log_sd, rest, fit.precisions, log_sd_start


def _fit_mean(design, response, case, start, is_plain):
    """Return the fit and the leverage of each row."""
    if is_plain:
        gram = design.plain_gram(case)
    else:
        gram = design.gram(case, np.flatnonzero(design.of_features(start) != np.inf))
    moment = design.values.T @ (case * response)
    fit = fit_blocks(gram, moment, case @ response**2, len(case), design.sizes, start)
    leverage = case / fit.noise * np.square(design.values[:, fit.active] @ fit.factor.T).sum(axis=1)
    return fit, leverage


def fit_log_sd(design, rest, weights, start=None):
    """Return weights (p,) of the log spread of residuals (n,), and precisions (b,); by Fisher scoring."""
    gram = design.plain_gram(weights)

    def fit(response, precisions, noise, **options):
        moment = design.values.T @ (weights * response)
        square = weights @ response**2
        return fit_blocks(gram, moment, square, len(rest), design.sizes, precisions, noise, **options)

    level = np.log(MAD_TO_SD**2 * np.median(rest**2) + 1e-300)
    square = np.maximum(rest**2, 1e-12 * np.exp(level))
    # The first step regresses logarithms, which no outlier moves far.
    found = fit(np.log(square) - LOG_CHI, start, _VARIANCE_OF_LOG_CHI)
    log_variance = design.values @ found.weights
    for _ in range(_MAX_SCORING):
        ratio = square * np.exp(-np.clip(log_variance, -60.0, 60.0))
        response = log_variance + np.minimum(ratio, _REGULAR**2) - 1.0
        found = fit(response, found.precisions, _VARIANCE_OF_LOG, iterations=2)
        new = design.values @ found.weights
        moved = np.abs(new - log_variance).max()
        log_variance += np.clip(new - log_variance, -2.0, 2.0)
        if moved < 0.05:
            break
    return 0.5 * found.weights, found.precisions


def fit_coefficients(design, scaled, weights):
    """Return weights (c, q (q - 1) / 2) of coefficients on the summaries before, and penalties of the same shape."""
    n, q = scaled.shape
    order, sizes = coefficient_blocks(design, n, q)
    c = len(order)
    out, penalties = np.zeros((c, q * (q - 1) // 2)), np.full((c, q * (q - 1) // 2), np.inf)
    # Residuals are both responses and regressors, so outliers get almost no weight.
    case = weights[:, None] * np.minimum(1.0, (_REGULAR / np.maximum(np.abs(scaled), 1e-30)) ** 4)
    some = slice(0, _CASES_FOR_COEFFICIENTS)
    base = design.values[some][:, order]
    for j, row in triangle_rows(q):
        own = case[some, : j + 1].min(axis=1)
        columns = np.hstack([np.ones((len(base), 1))] + [base * scaled[some, k, None] for k in range(j)])
        own_sizes = np.tile(sizes, j)  # features of one parameter, times one summary, are a block
        gram = (columns * own[:, None]).T @ columns
        response = own * scaled[some, j]
        fit = fit_blocks(gram, columns.T @ response, response @ scaled[some, j], len(base), own_sizes)
        out[order, row] = fit.weights[1:].reshape(j, c).T
        penalties[order, row] = np.repeat(fit.precisions, own_sizes).reshape(j, c).T
    return out, penalties


def coefficient_blocks(design, num_cases, num_summaries):
    """Return the indices of as many features as the cases allow, and sizes of blocks: the constant, each parameter."""
    most = min(num_cases / 2.0, _MAX_FOR_COEFFICIENTS) / max(num_summaries - 1, 1)
    sizes = [size for name, size in design.blocks.items() if name.split()[0] in ("linear", "square", "bumps")]
    d, ends = len(design.map.knots), np.cumsum([1, *sizes])
    constant, *single = np.split(np.arange(ends[-1]), ends[:-1])
    kinds = next((k for k in (3, 2, 1) if ends[: k * d + 1][-1] <= most), 0)
    order = [constant, *(np.concatenate(single[i : kinds * d : d]) for i in range(d if kinds else 0))]
    return np.concatenate(order), [len(own) for own in order]


def gradient_metric(design, z, means, log_sd):
    """Return the metric in which functions are equally rough in all directions: a root of mean gradient products."""
    d = z.shape[1]
    total = np.zeros((d, d))
    part = z[:: max(1, len(z) // 1000)]
    features = design.map(part)
    spread = np.exp(features @ (design.whitening @ log_sd))
    for j in range(means.shape[1]):
        for column, unit in ((means[:, j], spread[:, j : j + 1]), (log_sd[:, j], 1.0)):
            raw = design.whitening @ column
            gradient = design.map.pull_back(part, features, raw) / unit
            gradient = gradient - np.median(gradient, axis=0)
            size = np.sqrt((gradient**2).sum(axis=1))
            gradient *= np.minimum(1.0, 3.0 * np.median(size) / np.maximum(size, 1e-12))[:, None]
            total += gradient.T @ gradient / len(part)
    level = np.trace(total)
    if not level > 1e-10:
        return np.eye(d) / np.sqrt(d)
    values, vectors = np.linalg.eigh(total / level)
    return np.sqrt(np.maximum(values, 1e-3))[:, None] * vectors.T
