"""Scores at draws by surrogates fitted to other draws, and their errors.

Each part of the draws has the scores of a surrogate q that was fitted to log densities of the other parts. At the draws
the log density of the target p is known, too, so the error of q is known up to a constant. With q / p as weights a test
is one of p, whatever q is (Fisher and Oates 2023).
"""

from dataclasses import dataclass, field

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points
from pymc_kernel.scores.values import Values

_NUM_FOLDS = 4  # a quarter held out; the fits are four
_BLOCKS = 5  # of each chain and fold: neighbors in a chain are alike, and should be in one fold
_QUANTILE = 0.95  # of the errors of the log density: a single draw far out may have a huge one without harm
# Times the median one: a single draw at which q is far too high must not outweigh all others; the second where values
# are noisy, as noise spreads weights, and a smaller cap would leave errors of q uncorrected.
_LARGEST_WEIGHT = (4.0, 30.0)


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Scores at draws, from surrogates that have not seen these.

    Attributes
    ----------
    scores : ndarray (n, d)
    weights : ndarray (n,)
        q / p, with mean one; none is larger than four times the median, or thirty times where values are noisy.
    log_density_error : float
        95 of 100 held-out draws have a smaller error, in units of the log density; includes the noise of the values.
    score_error : float
        Root mean square difference of the scores of two surrogates, one of which was fitted without the draw, over the
        root mean square of the scores; draws are weighted, coordinates in units of their standard deviation.
    overlap : float
        One minus the total variation distance of q and p, estimated from the weights: one where all are equal.
    effective_share : float
        Effective sample size of the weighted draws, as a share of their number.
    num_values : int
        Distinct points that the surrogates were fitted to, in all.
    """

    scores: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    log_density_error: float
    score_error: float
    overlap: float
    effective_share: float
    num_values: int


def chain_folds(num_chains: int, num_draws: int) -> np.ndarray:
    """Return a fold, 0 to 3, for each draw of chains one after the other, (num_chains * num_draws,).

    Folds are made of blocks of draws, spread over each chain, so that every surrogate learns from all parts of a chain.
    """
    blocks = np.arange(num_draws) * _NUM_FOLDS * _BLOCKS // num_draws
    return np.tile(blocks % _NUM_FOLDS, num_chains)


def held_out_scores(points, values, folds, *, noisy: bool = False) -> HeldOutScores:
    """Return scores at points from the log densities at others of them.

    Raises ``ValueError`` where a value is not finite, there is one fold, or there are too few different points to learn
    from.

    Parameters
    ----------
    points : array_like (n, d)
        Draws, repeated ones included.
    values : array_like (n,)
        Log density of the target there, up to a constant; the estimates that a pseudo-marginal chain accepted, if it is
        only estimated: with weights from these the test is exact as well, since their noise averages out.
    folds : array_like (n,) of int
        The fold of each point, at least two in all. For each fold a surrogate is fitted to the points of the others;
        coinciding points are put in one fold.
    noisy : bool
        Whether the values are estimates.
    """
    points, values, folds = as_points(points), as_numbers(values, "values"), np.asarray(folds)
    if not values.shape == folds.shape == (len(points),):
        raise ValueError(f"values and folds must hold one number for each of {len(points)} points.")
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} values are not finite.")
    rng = np.random.default_rng(0)  # for subsets
    _, first, number = np.unique(points, axis=0, return_index=True, return_inverse=True)
    number = number.ravel()
    places, known, fold = points[first], values[first], folds[first]
    if len(np.unique(fold)) < 2:
        raise ValueError(f"all {len(places)} different points are in one fold: no others are left to learn from.")
    scores, others, errors = np.empty_like(places), np.empty_like(places), np.empty(len(places))
    fits = {}
    for k in np.unique(fold):
        is_training = fold != k
        fits[k] = Values().fit(places[is_training], known[is_training], rng, noisy=noisy)
        scores[~is_training] = fits[k].score(places[~is_training])
        errors[~is_training] = fits[k].log_density(places[~is_training]) - known[~is_training]
        errors[~is_training] -= np.median(errors[~is_training])  # the constant of a surrogate is arbitrary
    names = list(fits)
    for k, other in zip(names, [*names[1:], *names[:1]], strict=True):
        others[fold == k] = fits[other].score(places[fold == k])
    scores, others, errors = scores[number], others[number], errors[number]
    weights = np.exp(np.minimum(errors, np.log(_LARGEST_WEIGHT[bool(noisy)])))
    weights /= weights.mean()
    spread = points.std(axis=0)
    size, off = (weights @ ((part * spread) ** 2).sum(axis=1) for part in (scores, scores - others))
    return HeldOutScores(
        scores,
        weights,
        log_density_error=float(np.quantile(np.abs(errors), _QUANTILE)),
        score_error=float(np.sqrt(off / size)) if size > 0.0 else np.inf,
        overlap=1.0 - 0.5 * float(np.abs(weights - 1.0).mean()),
        effective_share=float(1.0 / (weights**2).mean()),
        num_values=len(places),
    )
