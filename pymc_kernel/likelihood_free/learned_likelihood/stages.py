"""Means, log variances and coefficients one after another, each by regression with evidence for blocks of features.

Imports NumPy and siblings only.
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.evidence import fit_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import Block, FeatureMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.model import Weights

__all__ = ["Design", "StagedFit", "fit_stages"]

_DEGREES = 5.0  # of freedom of the Student distribution that weighs outliers down
_LOG_CHI = -1.2704  # mean of the log of a chi-square variable of one degree
_VARIANCE_OF_LOG = 2.0  # inverse Fisher information of a log variance from one residual
_VARIANCE_OF_LOG_CHI = np.pi**2 / 2.0
_MEDIAN_OF_CHI = 0.4549  # square of one degree
_MAX_SCORING = 8
_ROWS = 8192


class Design:
    """Features of training points, whitened; Gram matrices with weights, in pieces."""

    def __init__(self, features: FeatureMap, z: np.ndarray):
        self.map = features
        self.whitening = features.whitening()
        self.values = features(z) @ self.whitening
        self.blocks = features.blocks
        self._plain = None

    def plain_gram(self, weights) -> np.ndarray:
        """Return the Gram matrix with the weights of the cases alone, kept."""
        if self._plain is None:
            self._plain = self.gram(weights)
        return self._plain

    def gram(self, weights) -> np.ndarray:
        """Return the weighted Gram matrix (p, p)."""
        out = np.zeros((self.values.shape[1],) * 2)
        for start in range(0, len(self.values), _ROWS):
            part = self.values[start : start + _ROWS] * np.sqrt(weights[start : start + _ROWS, None])
            out += part.T @ part
        return out

    def moment(self, weighted) -> np.ndarray:
        """Return sums (p,) of features times ``weighted`` (n,)."""
        return self.values.T @ weighted


@dataclass
class StagedFit:
    """What the stages found: weights of whitened features, and the prior precisions of their blocks."""

    design: Design
    weights: Weights
    mean_precisions: np.ndarray
    log_sd_precisions: np.ndarray
    log_rest_precisions: np.ndarray
    coefficient_precisions: np.ndarray

    def raw_weights(self) -> Weights:
        """Return the weights of the features as they are."""
        return Weights(*[self.design.whitening @ part for part in _parts(self.weights)])


def _parts(weights):
    return weights.means, weights.log_sd, weights.coefficients, weights.log_rest


def fit_stages(z, values, weights, rng, sizes) -> StagedFit:
    """Return the fit to standardized parameters ``z`` (n, d) and values (n, q) with case weights (n,) of mean one."""
    n, d = z.shape
    num_knots, num_centres = sizes(n, d)
    design = Design(make_features(z, rng, num_knots, num_centres), z)
    means, log_sd, precisions, sd_precisions, leave_out = fit_moments(design, values, weights)
    for _ in range(2):
        metric = gradient_metric(design, z, means, log_sd, values.shape[1])
        design = Design(make_features(z, rng, num_knots, num_centres, metric), z)
        means, log_sd, precisions, sd_precisions, leave_out = fit_moments(design, values, weights)
    scaled = leave_out * np.exp(-design.values @ log_sd)
    coefficients, coefficient_precisions = fit_coefficients(design, scaled, weights)
    p, q = means.shape
    staged = Weights(means, log_sd, coefficients, np.zeros((p, q)))
    log_rest, rest_precisions = np.zeros((p, q)), np.full((q, len(design.blocks)), np.inf)
    if q > 1:
        rest = scaled - _predicted(design, coefficients, scaled)
        log_rest, rest_precisions = fit_log_sd(design, rest, weights)
    staged = replace(staged, log_rest=log_rest)
    return StagedFit(design, staged, precisions, sd_precisions, rest_precisions, coefficient_precisions)


def _predicted(design, coefficients, scaled):
    out = np.zeros_like(scaled)
    entries = design.values @ coefficients
    at = 0
    for j in range(scaled.shape[1]):
        out[:, j] = (entries[:, at : at + j] * scaled[:, :j]).sum(axis=1)
        at += j
    return out


def fit_moments(design, values, weights, rounds=2):
    """Return weights of means and log spreads (p, q), their precisions (q, b), leave-one-out residuals (n, q)."""
    q, p = values.shape[1], design.values.shape[1]
    means, log_sd, leave_out = np.zeros((p, q)), np.zeros((p, q)), np.empty(values.shape)
    precisions = np.ones((q, len(design.blocks)))
    for j in range(q):
        case, start, sd_start = weights.copy(), None, None
        for number in range(rounds + 1):
            fit, leverage = _fit_mean(design, values[:, j], case, start)
            rest = values[:, j] - design.values @ fit.weights
            rest = rest / np.maximum(1.0 - leverage, 0.05)
            if number < rounds:
                spread, sd_start = fit_log_sd(design, rest[:, None], weights, sd_start)
                spread = np.exp(design.values @ spread[:, 0])
                case = weights * _robust((rest / spread) ** 2) / spread**2
                case = case / case.mean()
            start = fit.precisions
        means[:, j], precisions[j], leave_out[:, j] = fit.weights, fit.precisions, rest
    log_sd, sd_precisions = fit_log_sd(design, leave_out, weights)
    return means, log_sd, precisions, sd_precisions, leave_out


def _robust(squared):
    return (_DEGREES + 1.0) / (_DEGREES + squared)


def _fit_mean(design, response, case, start):
    """Return the fit and the leverage of each row."""
    gram = design.gram(case)
    fit = fit_blocks(gram, design.moment(case * response), case @ response**2, len(case), design.blocks, start)
    used = design.values[:, fit.active]
    leverage = case * np.einsum("nk,nk->n", used @ (fit.inverse / fit.noise), used)
    return fit, leverage


def fit_log_sd(design, rest, weights, start=None):
    """Return weights (p, q) of log spreads of residuals (n, q), and precisions (q, b); by Fisher scoring."""
    n, q = rest.shape
    gram = design.plain_gram(weights)
    out, precisions = np.zeros((design.values.shape[1], q)), np.empty((q, len(design.blocks)))
    for j in range(q):
        level = np.log(np.median(rest[:, j] ** 2) / _MEDIAN_OF_CHI + 1e-300)
        square = np.maximum(rest[:, j] ** 2, 1e-12 * np.exp(level))
        # The first step is from logarithms, which no outlier moves far.
        response = np.log(square) - _LOG_CHI
        before = None if start is None else start[j]
        moment = design.moment(weights * response)
        fit = fit_blocks(gram, moment, weights @ response**2, n, design.blocks, before, _VARIANCE_OF_LOG_CHI)
        log_variance = design.values @ fit.weights
        for _ in range(_MAX_SCORING):
            ratio = square * np.exp(-np.clip(log_variance, -60.0, 60.0))
            response = log_variance + _robust(ratio) * ratio - 1.0
            moment = design.moment(weights * response)
            fit = fit_blocks(gram, moment, weights @ response**2, n, design.blocks, fit.precisions, _VARIANCE_OF_LOG, 2)
            new = design.values @ fit.weights
            moved = np.abs(new - log_variance).max()
            log_variance += np.clip(new - log_variance, -2.0, 2.0)
            if moved < 0.05:
                break
        out[:, j], precisions[j] = 0.5 * fit.weights, fit.precisions
    return out, precisions


def fit_coefficients(design, scaled, weights):
    """Return weights (p, q (q - 1) / 2) of coefficients on the summaries before, and precisions."""
    q, d = scaled.shape[1], design.map.num_dims
    p = design.values.shape[1]
    out = np.zeros((p, q * (q - 1) // 2))
    case = weights[:, None] * _robust(scaled**2)
    at = 0
    found = []
    for j in range(1, q):
        base = design.values[:, : d + 1]
        columns = (scaled[:, :j, None] * base[:, None, :]).transpose(0, 2, 1).reshape(len(base), -1)
        columns = np.hstack([np.ones((len(base), 1)), columns])
        blocks = (Block("constant", 1, j + 1), Block("slopes", j + 1, 1 + j * (d + 1)))
        own = np.sqrt(case[:, : j + 1].prod(axis=1) ** (1.0 / (j + 1)))[:, None]
        gram = (columns * own).T @ (columns * own)
        moment = columns.T @ (own[:, 0] ** 2 * scaled[:, j])
        fit = fit_blocks(gram, moment, (own[:, 0] ** 2 * scaled[:, j] ** 2).sum(), len(base), blocks)
        out[: d + 1, at : at + j] = fit.weights[1:].reshape(d + 1, j)
        found.append(fit.precisions / fit.noise)
        at += j
    return out, np.array(found)


def gradient_metric(design, z, means, log_sd, num_summaries):
    """Return the metric in which the functions are equally rough: the root of averaged outer products of gradients."""
    d = z.shape[1]
    total = np.zeros((d, d))
    part = z[:: max(1, len(z) // 1000)]
    features = design.map(part)
    spread = np.exp(features @ (design.whitening @ log_sd))
    for j in range(num_summaries):
        for column, unit in ((means[:, j], spread[:, j : j + 1]), (log_sd[:, j], 1.0)):
            raw = design.whitening @ column
            gradient = design.map.pull_back(part, features, np.tile(raw, (len(part), 1))) / unit
            gradient = gradient - np.median(gradient, axis=0)
            size = np.sqrt((gradient**2).sum(axis=1))
            gradient *= np.minimum(1.0, 3.0 * np.median(size) / np.maximum(size, 1e-12))[:, None]
            total += gradient.T @ gradient / len(part)
    level = np.trace(total)
    if not level > 1e-10:
        return np.eye(d) / np.sqrt(d)
    values, vectors = np.linalg.eigh(total / level)
    values = np.maximum(values, 1e-3)
    return np.sqrt(values)[:, None] * vectors.T
