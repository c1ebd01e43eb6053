"""Means, log variances and coefficients one after another, each by regression with evidence for blocks of features.

Imports NumPy and siblings only.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.evidence import fit_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import Block, FeatureMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.model import Weights
from pymc_kernel.likelihood_free.learned_likelihood.summaries import winsorized

_REGULAR = 4.0  # standard deviations from which on the weight of a residual falls
LOG_CHI = -1.2704  # mean of the log of a chi-square variable of one degree
_VARIANCE_OF_LOG = 2.0  # inverse Fisher information of a log variance from one residual
_VARIANCE_OF_LOG_CHI = np.pi**2 / 2.0
_MEDIAN_OF_CHI = 0.4549  # square of one degree
_REWEIGHTED = 2  # times that means are fitted again
_MAX_SCORING = 8
_CASES_FOR_METRIC = 2000
_CASES_FOR_COEFFICIENTS = 20_000
_MAX_FOR_COEFFICIENTS = 400
_ROWS = 8192


class Design:
    """Features of training points, whitened; Gram matrices with weights, in pieces."""

    def __init__(self, features: FeatureMap, z: np.ndarray):
        self.map = features
        self.whitening, self.blocks = features.whitened()
        self.values = features(z) @ self.whitening
        self._plain = None

    def entries(self, weights: Weights) -> Weights:
        """Return means, log spreads and coefficients of the training points."""
        return weights.entries(self.values)

    def raw(self, weights: Weights) -> Weights:
        """Return weights of the features as they are."""
        c = len(weights.coefficients)
        kept = np.flatnonzero(np.abs(self.whitening[:, :c]).sum(axis=1))
        first = self.whitening[: kept[-1] + 1, :c]
        parts = [self.whitening @ part for part in (weights.means, weights.log_sd, weights.log_rest)]
        return Weights(parts[0], parts[1], first @ weights.coefficients, parts[2])

    def plain_gram(self, weights) -> np.ndarray:
        """Return the Gram matrix with the weights of the cases alone, kept."""
        if self._plain is None:
            self._plain = self.gram(weights)
        return self._plain

    def gram(self, weights, columns=None) -> np.ndarray:
        """Return the weighted Gram matrix (p, p); with zeros but for some ``columns`` where they are given."""
        p = self.values.shape[1]
        columns = np.arange(p) if columns is None else columns
        total = np.zeros((len(columns),) * 2)
        for start in range(0, len(self.values), _ROWS):
            rows = self.values[start : start + _ROWS]
            part = (rows if len(columns) == p else rows[:, columns]) * np.sqrt(weights[start : start + _ROWS, None])
            total += part.T @ part
        if len(columns) == p:
            return total
        out = np.zeros((p, p))
        out[np.ix_(columns, columns)] = total
        return out

    def moment(self, weighted) -> np.ndarray:
        """Return sums (p,) of features times ``weighted`` (n,)."""
        return self.values.T @ weighted


class StageChoices(NamedTuple):
    """What a fit to other cases of the same simulator starts with: a metric, and which blocks are in use."""

    metric: np.ndarray
    num_blocks: int
    mean_precisions: np.ndarray
    log_sd_precisions: np.ndarray
    log_rest_precisions: np.ndarray


@dataclass
class StagedFit:
    """What the stages found: weights of whitened features, and the prior precisions of their blocks."""

    design: Design
    weights: Weights
    mean_precisions: np.ndarray
    log_sd_precisions: np.ndarray
    log_rest_precisions: np.ndarray
    coefficient_penalties: np.ndarray
    """(c, q (q - 1) / 2)."""
    noise: np.ndarray
    """(n, q), residuals with means that were learned without them."""

    def choices(self) -> StageChoices:
        """Return where a fit to other cases starts."""
        precisions = self.mean_precisions, self.log_sd_precisions, self.log_rest_precisions
        return StageChoices(self.design.map.metric, len(self.design.blocks), *precisions)


def fit_stages(z, values, weights, rng, sizes, before: StageChoices | None = None) -> StagedFit:
    """Return the fit to standardized parameters ``z`` (n, d) and values (n, q) with case weights (n,) of mean one.

    What a fit to other cases of the same simulator found ``before`` is where this one starts: the metric, and which
    blocks are in use.
    """
    n, d = z.shape
    num_knots, num_centers = sizes(n, d)
    metric = before.metric if before else learn_metric(z, values, weights, rng, num_knots, num_centers)
    design = Design(make_features(z, rng, num_knots, num_centers, metric), z)
    if before and before.num_blocks != len(design.blocks):
        before = None
    moments = fit_moments(design, values, weights, before)
    return finish_stages(design, moments, weights, before)


def learn_metric(z, values, weights, rng, num_knots, num_centers):
    """Return the metric of the joint features, learned from some of the cases."""
    metric, responses = None, winsorized(values)
    for _ in range(2):
        some = rng.choice(len(z), min(len(z), _CASES_FOR_METRIC), replace=False)
        rough = Design(make_features(z[some], rng, num_knots, min(num_centers, len(some) // 10), metric), z[some])
        means, log_sd = np.zeros((2, rough.values.shape[1], values.shape[1]))
        for j in range(values.shape[1]):
            fit, leverage = _fit_mean(rough, responses[some, j], weights[some], None, True)
            rest = (responses[some, j] - rough.values @ fit.weights) / np.maximum(1.0 - leverage, 0.05)
            means[:, j] = fit.weights
            log_sd[0, j] = 0.5 * np.log(np.median(rest**2) / _MEDIAN_OF_CHI + 1e-300)
            if metric is not None:
                log_sd[:, j] = fit_log_sd(rough, rest[:, None], weights[some])[0][:, 0]
        metric = gradient_metric(rough, z[some], means, log_sd)
    return metric


def finish_stages(design, moments, weights, before) -> StagedFit:
    """Return the fit with coefficients and remaining log spreads, given means and log spreads."""
    p, q = moments.means.shape
    scaled = moments.leave_out * np.exp(-design.values @ moments.log_sd)
    coefficients, penalties = fit_coefficients(design, scaled, weights)
    log_rest, rest_precisions = np.zeros((p, q)), np.full((q, len(design.blocks)), np.inf)
    rest = scaled
    if q > 1:
        rest = scaled - _predicted(design, coefficients, scaled)
        log_rest[:, 1:], rest_precisions[1:] = fit_log_sd(
            design, rest[:, 1:], weights, before and before.log_rest_precisions[1:]
        )
    staged = Weights(moments.means, moments.log_sd, coefficients, log_rest)
    noise = rest * np.exp(-design.values @ log_rest)
    return StagedFit(design, staged, moments.precisions, moments.sd_precisions, rest_precisions, penalties, noise)


class Moments(NamedTuple):
    """Means and log spreads of each summary by itself."""

    means: np.ndarray
    """(p, q), weights of whitened features."""
    log_sd: np.ndarray
    """(p, q)."""
    precisions: np.ndarray
    """(q, b), of the prior of blocks of features of means."""
    sd_precisions: np.ndarray
    """(q, b)."""
    leave_out: np.ndarray
    """(n, q), leave-one-out residuals."""


def _predicted(design, coefficients, scaled):
    out = np.zeros_like(scaled)
    entries = design.values[:, : len(coefficients)] @ coefficients
    at = 0
    for j in range(scaled.shape[1]):
        out[:, j] = (entries[:, at : at + j] * scaled[:, :j]).sum(axis=1)
        at += j
    return out


def fit_moments(design, values, weights, before=None) -> Moments:
    """Return means and log spreads; the means are fitted again with the weights of the spreads."""
    q, p = values.shape[1], design.values.shape[1]
    means, leave_out, responses = np.zeros((p, q)), np.empty(values.shape), winsorized(values)
    log_sds, precisions, sd_precisions = np.zeros((p, q)), *np.ones((2, q, len(design.blocks)))
    for j in range(q):
        case, response = weights, responses[:, j]
        start = before and before.mean_precisions[j]
        sd_start = before and before.log_sd_precisions[j : j + 1]
        for number in range(_REWEIGHTED + 1):
            fit, leverage = _fit_mean(design, response, case, start, number == 0)
            rest = (values[:, j] - design.values @ fit.weights) / np.maximum(1.0 - leverage, 0.05)
            log_sd, sd_start = fit_log_sd(design, rest[:, None], weights, sd_start)
            spread = np.exp(design.values @ log_sd[:, 0])
            case = weights * np.minimum(1.0, _REGULAR * spread / np.maximum(np.abs(rest), 1e-300)) / spread**2
            case = case / case.mean()
            # With its spread known a summary may show what it depends on.
            again = np.where(np.isfinite(fit.precisions), fit.precisions, np.nan)
            start, response = again if number == 0 and before is None else fit.precisions, values[:, j]
        means[:, j], precisions[j], leave_out[:, j] = fit.weights, fit.precisions, rest
        log_sds[:, j], sd_precisions[j] = log_sd[:, 0], sd_start[0]
    return Moments(means, log_sds, precisions, sd_precisions, leave_out)


def _fit_mean(design, response, case, start, is_plain):
    """Return the fit and the leverage of each row."""
    out = np.zeros(0, dtype=int)
    if start is not None:
        out = np.concatenate(
            [out, *(np.arange(b.start, b.stop) for b, s in zip(design.blocks, start, strict=True) if s == np.inf)]
        )
    columns = np.setdiff1d(np.arange(design.values.shape[1]), out)
    gram = design.plain_gram(case) if is_plain else design.gram(case, columns)
    fit = fit_blocks(gram, design.moment(case * response), case @ response**2, len(case), design.blocks, start)
    leverage = case / fit.noise * np.square(design.values[:, fit.active] @ fit.factor.T).sum(axis=1)
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
        response = np.log(square) - LOG_CHI
        before = None if start is None else start[j]
        moment = design.moment(weights * response)
        fit = fit_blocks(gram, moment, weights @ response**2, n, design.blocks, before, _VARIANCE_OF_LOG_CHI)
        log_variance = design.values @ fit.weights
        for _ in range(_MAX_SCORING):
            ratio = square * np.exp(-np.clip(log_variance, -60.0, 60.0))
            response = log_variance + np.minimum(ratio, _REGULAR**2) - 1.0
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
    """Return weights (c, q (q - 1) / 2) of coefficients on the summaries before, and penalties of the same shape."""
    n, q = scaled.shape
    order, blocks = coefficient_blocks(design, n, q)
    c = len(order)
    out, penalties = np.zeros((c, q * (q - 1) // 2)), np.full((c, q * (q - 1) // 2), np.inf)
    # A residual is response here and regressor there: outliers have no part in it.
    case = weights[:, None] * np.minimum(1.0, (_REGULAR / np.maximum(np.abs(scaled), 1e-30)) ** 4)
    at, some = 0, slice(0, _CASES_FOR_COEFFICIENTS)
    base = design.values[some, :c]
    for j in range(1, q):
        own = case[some, : j + 1].min(axis=1)
        # Features of one parameter, times one summary, are a block.
        columns = np.hstack([np.ones((len(base), 1))] + [(base * scaled[some, k, None])[:, order] for k in range(j)])
        parts = [Block(b.name, 1 + k * c + b.start, 1 + k * c + b.stop) for k in range(j) for b in blocks]
        gram = (columns * own[:, None]).T @ columns
        response = own * scaled[some, j]
        fit = fit_blocks(gram, columns.T @ response, response @ scaled[some, j], len(base), parts)
        out[order, at : at + j] = fit.weights[1:].reshape(j, c).T
        penalty = np.repeat(fit.precisions, [b.stop - b.start for b in parts])
        penalties[order, at : at + j] = penalty.reshape(j, c).T
        at += j
    return out, penalties


def coefficient_blocks(design, num_cases, num_summaries):
    """Return an order of as many features as there are cases for, and blocks: the constant, each parameter."""
    most = min(num_cases / 2.0, _MAX_FOR_COEFFICIENTS) / max(num_summaries - 1, 1)
    single = [b for b in design.blocks if b.name.split()[0] in ("linear", "square", "bumps")]
    d = design.map.num_dims
    order, blocks = [np.array([0])], [Block("constant", 0, 1)]
    for kinds in (3, 2, 1):
        size = single[min(kinds * d, len(single)) - 1].stop
        if size <= most:
            at = 1
            for i in range(d):
                own = [np.arange(b.start, b.stop) for b in single[i : kinds * d : d]]
                order.append(np.concatenate(own))
                blocks.append(Block(f"parameter {i}", at, at + len(order[-1])))
                at += len(order[-1])
            break
    return np.concatenate(order), blocks


def gradient_metric(design, z, means, log_sd):
    """Return the metric in which the functions are equally rough: the root of averaged outer products of gradients."""
    d = z.shape[1]
    total = np.zeros((d, d))
    part = z[:: max(1, len(z) // 1000)]
    features = design.map(part)
    spread = np.exp(features @ (design.whitening @ log_sd))
    for j in range(means.shape[1]):
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
