"""Choice of the functions of parameters and of summaries that make the regression simple."""

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.likelihood_free.learned_likelihood.evidence import LEAST_GAIN, MAX_LOG
from pymc_kernel.likelihood_free.learned_likelihood.features import ParameterMap, make_features, transform_columns
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Marginals
from pymc_kernel.likelihood_free.learned_likelihood.stages import LOG_CHI, SOME_CASES
from pymc_kernel.likelihood_free.learned_likelihood.summaries import SummaryMap, candidate_kinds, winsorized

_ERRORS = 2.0  # standard errors by which a function of a summary must be better than the one chosen so far
_MAX_BUMPS = 60
_PENALTY = 1e-3  # relative to the number of cases


def choose_parameter_map(parameters, values, rng) -> ParameterMap:
    """Return the map of parameters (n, d) after which simple features explain most of the values (n, q)."""
    n, d = parameters.shape
    some = rng.choice(n, min(n, SOME_CASES), replace=False)
    part, responses = parameters[some], winsorized(values[some])
    responses = np.hstack([responses, _log_squares(part, responses)])
    is_moderate = (np.ptp(part, axis=0) < MAX_LOG) & (np.abs(part).max(axis=0) < 10.0 * MAX_LOG)
    margin = LEAST_GAIN * np.sqrt(responses.shape[1])

    def better(kinds, best, losses):
        # Better with and without bumps: quadratics alone favor logistic functions if summaries depend on a sum of
        # parameters, and bumps gain from any function that makes a parameter without effect nearly constant.
        found = _rough_losses(part, responses, kinds)
        return (kinds, found) if (found < losses - margin).all() else (best, losses)

    best = ["identity"] * d
    losses = _rough_losses(part, responses, best)
    whole = [np.where(is_moderate, kind, "identity").tolist() for kind in ("exp", "expit")]
    best, losses = better(min(whole, key=lambda kinds: _rough_losses(part, responses, kinds).sum()), best, losses)
    for i in np.flatnonzero(is_moderate):
        for kind in ("identity", "exp", "expit"):
            if kind != best[i]:
                best, losses = better([*best[:i], kind, *best[i + 1 :]], best, losses)
    return ParameterMap.of(parameters, best)


def _log_squares(parameters, responses):
    """Return logarithms of squared residuals, whose regression shows how spreads depend on the parameters."""
    z = ParameterMap.of(parameters, ("identity",) * parameters.shape[1])(parameters)
    design = _rough_design(z, np.random.default_rng(0), 0)
    squares = (responses - _left_out(design)(responses)) ** 2
    return np.log(squares + 1e-4 * squares.mean(axis=0) + 1e-300)


def _rough_design(z, rng, num_centers):
    features = make_features(z, rng, 6 if len(z) > 200 else 0, num_centers)
    return features(z) @ features.whitened()[0]


def _rough_losses(parameters, responses, kinds):
    """Return minus the log likelihoods of regressions on quadratics, and on bumps as well, by cross-validation."""
    columns = transform_columns(parameters, kinds)
    if not (columns.std(axis=0) > 1e-6 * np.abs(columns).max(axis=0)).all():
        return np.full(2, np.inf)
    z = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    n, d = z.shape
    features = make_features(z, np.random.default_rng(0), 0, min(_MAX_BUMPS, n // 8))
    design = features(z)
    quadratics = 1 + 2 * d + len(features.pairs[0])
    if design.shape[1] > n // 3:
        quadratics = 2 * d + 1
        design = design[:, :quadratics]
    basis, _ = np.linalg.qr(design)
    explained = (basis.T @ responses) ** 2
    losses = []
    for size in (quadratics, design.shape[1]):
        left = (responses**2).sum(axis=0) - explained[:size].sum(axis=0)
        losses.append(0.5 * n * np.log(np.maximum(left / (n - size) ** 2, 1e-300)).sum())
    return np.array(losses)


def choose_maps(parameters, summaries, spread, rng) -> tuple[ParameterMap, SummaryMap]:
    """Return the maps of parameters (n, d) and summaries (n, q) with the best held-out score of a rough regression.

    Each function of the summaries is tried with the map of the parameters that suits it: if the scale of the data is
    the exponential of a parameter, their logarithm is linear in the parameter. In ``spread`` (n, q) whole numbers
    are spread over their intervals, so that the score is a density.
    """
    plain = SummaryMap.of(summaries)
    n = len(summaries)
    some = rng.choice(n, min(n, 2 * SOME_CASES), replace=False)
    columns = summaries[some][:, plain.kept] / plain.step
    options = [candidate_kinds(c, whole) for c, whole in zip(columns.T, plain.whole, strict=True)]
    places, scores = {}, {}
    for kind in ("identity", "log", "log_shifted", "sqrt", "asinh"):
        if kind == "identity" or any(kind in o for o in options):
            transform = SummaryMap.of(summaries, [kind if kind in o else "identity" for o in options])
            places[kind] = choose_parameter_map(parameters, transform(summaries), rng)
            design = _rough_design(places[kind](parameters[some]), rng, min(len(some) // 10, 60))
            scores[kind] = _leave_one_out_scores(design, transform, spread[some])
    # The same function for all, unless another is clearly better for a column.
    totals = {kind: score.sum(axis=1) for kind, score in scores.items()}
    common = max(totals, key=lambda kind: totals[kind].sum())
    common = common if _is_better(totals[common], totals["identity"], common) else "identity"
    best = []
    for j, available in enumerate(options):
        chosen = common if common in available else "identity"
        for kind in available:
            if _is_better(scores[kind][:, j], scores[chosen][:, j], kind):
                chosen = kind
        best.append(chosen)
    return places[common], SummaryMap.of(summaries, best)


def _is_better(score, than, kind):
    """Return whether log scores (n,) favor a function; asinh must win by more, since it imitates missed spreads."""
    gain = score - than
    errors = _ERRORS * (2.0 if kind == "asinh" else 1.0)
    return gain.sum() > max(LEAST_GAIN, errors * np.sqrt(len(gain)) * gain.std())


def _leave_one_out_scores(design, transform, summaries):
    """Return log scores (n, q) of summaries given regressions of means and log variances on the others."""
    values, log_slope = transform(summaries), transform.log_slope(summaries)
    predict = _left_out(design)
    rest = values - predict(winsorized(values))
    log_variance = predict(np.log(rest**2 + 1e-6 * np.median(rest**2, axis=0)) - LOG_CHI)
    scaled = rest * np.exp(-0.5 * log_variance)
    unit = np.maximum(np.median(np.abs(scaled), axis=0), 1e-300)
    shape = Marginals.start(scaled, 3).fitted(scaled / unit, np.ones(len(scaled)), 20)
    return shape.log_densities(scaled / unit) - np.log(unit) - 0.5 * log_variance + log_slope


def _left_out(design):
    """Return the function from responses (n, q) to predictions of each from the others, by a ridge regression."""
    gram = design.T @ design
    gram[np.diag_indices_from(gram)] += _PENALTY * len(design) + 1.0
    gram[0, 0] -= _PENALTY * len(design) + 1.0  # the constant has no penalty
    root = np.linalg.cholesky(gram)
    half = solve_triangular(root, design.T, lower=True, check_finite=False)
    leverage = np.minimum((half**2).sum(axis=0), 0.95)[:, None]
    return lambda responses: responses - (responses - half.T @ (half @ responses)) / (1.0 - leverage)
