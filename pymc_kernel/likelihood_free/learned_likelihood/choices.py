"""Which function of each parameter, and of each summary, makes the regression simple. Imports NumPy and siblings only."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pymc_kernel.likelihood_free.learned_likelihood.features import ParameterMap, make_features, transform_columns
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Marginals
from pymc_kernel.likelihood_free.learned_likelihood.summaries import SummaryMap, candidate_kinds, winsorized

__all__ = ["choose_parameter_map", "choose_summary_map"]

_MAX_CASES = 2000
_CLEARLY = 3.0  # log likelihood that another function than the identity must gain
_ERRORS = 2.0  # standard errors by which a function of a summary must be better than those before
_MAX_RANGE = 30.0  # of a parameter whose exponential is a candidate
_PENALTY = 1e-3  # relative to the number of cases
_LOG_CHI = -1.2704  # mean of the log of a chi-square variable of one degree


def choose_parameter_map(parameters, values, rng) -> ParameterMap:
    """Return the map of parameters (n, d) after which quadratics explain most of the values (n, q)."""
    n, d = parameters.shape
    some = rng.choice(n, min(n, _MAX_CASES), replace=False)
    part, responses = parameters[some], winsorized(values[some])
    responses = np.hstack([responses, _log_squares(part, responses)])
    options = [_options(column) for column in part.T]
    best = ["identity"] * d
    loss = _quadratic_loss(part, responses, best)
    margin = _CLEARLY * np.sqrt(responses.shape[1])
    for kind in ("exp", "expit"):
        kinds = [kind if kind in o else "identity" for o in options]
        other = _quadratic_loss(part, responses, kinds)
        if other < loss - margin:
            best, loss = kinds, other
    for i in range(d):
        for kind in options[i]:
            kinds = [*best[:i], kind, *best[i + 1 :]]
            other = _quadratic_loss(part, responses, kinds) if kind != best[i] else np.inf
            if other < loss - margin:
                best, loss = kinds, other
    return ParameterMap.of(parameters, best)


def _log_squares(parameters, responses):
    """Return logarithms of squared residuals, whose regression shows how spreads depend on the parameters."""
    z = ParameterMap.of(parameters, ("identity",) * parameters.shape[1])(parameters)
    features = make_features(z, np.random.default_rng(0), 6 if len(z) > 200 else 0, 0)
    design = features(z) @ features.whitened()[0]
    squares = (responses - design @ _ridge(design)(responses)) ** 2
    return np.log(squares + 1e-4 * squares.mean(axis=0) + 1e-300)


def _options(column):
    options = ["identity"]
    if np.ptp(column) < _MAX_RANGE and np.abs(column).max() < 10.0 * _MAX_RANGE:
        options += ["exp", "expit"]
    return options


def _quadratic_loss(parameters, responses, kinds):
    """Return minus twice the log likelihood of quadratic regression, by generalized cross-validation, halved."""
    columns = transform_columns(parameters, kinds)
    if not (columns.std(axis=0) > 1e-6 * np.abs(columns).max(axis=0)).all():
        return np.inf
    z = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    n, d = z.shape
    rows, others = np.triu_indices(d)
    if len(rows) > n // 4:
        rows, others = np.arange(d), np.arange(d)
    design = np.hstack([np.ones((n, 1)), z, z[:, rows] * z[:, others]])
    basis, _ = np.linalg.qr(design)
    left = (responses**2).sum(axis=0) - ((basis.T @ responses) ** 2).sum(axis=0)
    return 0.5 * n * np.log(np.maximum(left / (n - design.shape[1]) ** 2, 1e-300)).sum()


def choose_summary_map(summaries, spread, places: ParameterMap, parameters, rng) -> SummaryMap:
    """Return the map of summaries (n, q) with the best held-out score of a heteroscedastic regression.

    In ``spread`` (n, q) whole numbers are spread over their intervals, so that the score is a density.
    """
    plain = SummaryMap.of(summaries)
    n = len(summaries)
    some = rng.choice(n, min(n, 2 * _MAX_CASES), replace=False)
    part, z = spread[some], places(parameters[some])
    features = make_features(z, rng, 6 if n > 200 else 0, min(len(some) // 10, 60))
    design = features(z) @ features.whitened()[0]
    columns = summaries[some][:, plain.kept]
    options = [candidate_kinds(c, whole) for c, whole in zip(columns.T, plain.whole, strict=True)]
    best, scores = list(plain.kinds), None
    for kind in ("identity", "log", "log_shifted", "sqrt", "asinh"):
        kinds = [kind if kind in o else "identity" for o in options]
        found = _held_out_scores(design, SummaryMap.of(summaries, kinds), part)
        scores = found if scores is None else scores
        for j in range(len(options)):
            gain = found[:, j] - scores[:, j]
            if kind in options[j] and gain.sum() > max(_CLEARLY, _ERRORS * np.sqrt(len(gain)) * gain.std()):
                best[j], scores[:, j] = kind, found[:, j]
    return SummaryMap.of(summaries, best)


def _held_out_scores(design, transform, summaries):
    """Return log scores (n, q), those of either half learned from the other."""
    values, log_slope = transform(summaries), transform.log_slope(summaries)
    half = np.arange(len(design)) < len(design) // 2
    total = np.empty(values.shape)
    for train in (half, ~half):
        solve = _ridge(design[train])
        means = design @ solve(winsorized(values[train]))
        rest = values - means
        log_variance = design @ solve(np.log(rest[train] ** 2 + 1e-6 * np.median(rest[train] ** 2, axis=0)) - _LOG_CHI)
        scaled = rest * np.exp(-0.5 * log_variance)
        unit = np.median(np.abs(scaled[train]), axis=0)
        shape = Marginals.start(scaled[train], 3).fitted(scaled[train] / unit, np.ones(train.sum()), 20)
        score = shape.log_densities(scaled / unit) - np.log(unit) - 0.5 * log_variance + log_slope
        total[~train] = score[~train]
    return total


def _ridge(design):
    """Return the function from responses (n, q) to weights (p, q)."""
    gram = design.T @ design
    gram[np.diag_indices_from(gram)] += _PENALTY * len(design) + 1.0
    gram[0, 0] -= _PENALTY * len(design) + 1.0
    root = cho_factor(gram, check_finite=False)
    return lambda responses: cho_solve(root, design.T @ responses, check_finite=False)
