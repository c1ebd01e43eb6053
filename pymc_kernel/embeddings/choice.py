"""Choice of neighborhoods and smoothing by cross-validation. Imports NumPy and siblings.

The prediction of a case does not depend on its parameter: means, residuals and coordinates come from a fit without the
case's fold. Leave-one-out means would not be enough: among tied observations they are a linear function of the case's
own parameter. Choices made by all training points (the kernel, its regularization, the neighbors) are not repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.losses import losses_overall, losses_own
from pymc_kernel.embeddings.mixture import Mixture, log_normals
from pymc_kernel.embeddings.predictive import (
    BANDWIDTHS,
    WIDEST,
    Settings,
    chosen_residuals,
    covariance,
    is_large_enough,
    near,
    own_covariances,
    residual_mixture,
    squared_distances,
    ways,
)

__all__ = [
    "NUM_FOLDS",
    "SHARES",
    "Choice",
    "CrossFit",
    "Fold",
    "HeldOut",
    "candidate_losses",
    "close_to_best",
    "largest_share_of_best",
    "place_values",
    "race",
]

NUM_FOLDS = 5  # a fifth held out costs little accuracy; the fits are five
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of the training points; 1 is global
_STAGES = (12, 25, 50, 100, 200)  # cases after which settings that are clearly behind are left out
_CLEAR_DIFFERENCE = 2.0  # standard errors of the mean excess score that count as clearly behind
_UNSEEN_EXCESS = 5.0  # excess log score that one unseen case could add
# A setting behind one with a larger share is no longer asked, since of two that are close the larger share is taken. In
# the 54 choices, for six kinds of problems, that its bounds were picked by, no other setting was chosen for it; of four
# others one was, by .014 nats worse.
_SLIGHT_DIFFERENCE = 0.5  # standard errors
_UNSEEN_SHORTFALL = 1.0  # excess log score of one unseen case
_OUTSIDE_WEIGHT = 0.01  # weight of a wide normal distribution in the score, so that no single case decides
_OUTSIDE_WIDTH = 3.0  # its spread, in those of all residuals


@dataclass(frozen=True, eq=False)
class Fold:
    """A fit without the cases of one fold.

    Attributes
    ----------
    weights : ndarray (n,)
        Of the training points; zero for the cases that were left out.
    residuals : ndarray (n, p)
        Of the training points, each left out of its own mean; scaled.
    errors : ndarray (n, p)
        Parameters minus means of the fit; scaled. For cases that were left out, the truth that is scored.
    places : dict
        Metric -> (n, k), from means of this fit.
    """

    weights: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    places: dict[str, np.ndarray]

    @cached_property
    def overall(self) -> np.ndarray:
        """The covariance (p, p) of all residuals."""
        return covariance(self.residuals, self.weights / self.weights.sum())

    @cached_property
    def _wide_factor(self):
        return _OUTSIDE_WIDTH * np.linalg.cholesky(self.overall)

    def log_density_outside(self, case: int) -> float:
        """Return the log density of a case's error under the wide normal distribution, times its weight."""
        return float(np.log(_OUTSIDE_WEIGHT) + log_normals(self.errors[case][None], self._wide_factor[None])[0])


class Choice(NamedTuple):
    """The settings that predict held-out cases best.

    Attributes
    ----------
    settings : Settings
    scores : dict
        Settings -> minus the mean log density of held-out cases, up to a constant; smaller is better. For settings that
        were dropped early, that of the best plus their mean excess until then.
    """

    settings: Settings
    scores: dict[Settings, float]


def place_values(observed, means, spread) -> dict[str, np.ndarray]:
    """Return the coordinates in which nearness is measured: metric -> (n, k).

    Parameters
    ----------
    observed : ndarray (n, q)
        Scaled.
    means : ndarray (n, p)
        Posterior means, scaled.
    spread : ndarray (p, p)
        Cholesky factor of the covariance of residuals: means are near where posteriors overlap.
    """
    return {"observed": observed, "predicted": np.linalg.solve(spread, means.T).T}


class HeldOut(NamedTuple):
    """Predictions of held-out cases.

    Attributes
    ----------
    weights : ndarray (m,)
        Of the cases, of sum one.
    losses : ndarray (m,)
        Minus the log densities of the scaled parameters, up to a constant.
    ranks : ndarray (m, p)
        The posterior's marginal distribution functions at the true parameters: uniform for right posteriors.
    """

    weights: np.ndarray
    losses: np.ndarray
    ranks: np.ndarray

    def coverage(self, probability: float) -> np.ndarray:
        """Return the share (p,) of true parameters in central intervals of this probability."""
        return self.weights @ (np.abs(2.0 * self.ranks - 1.0) <= probability)

    @property
    def effective_number(self) -> float:
        """Effective number of cases."""
        return float(1.0 / (self.weights**2).sum())


class CrossFit:
    """Fits without each fold in turn, by which settings are chosen and answers are checked.

    Parameters
    ----------
    fold_of : ndarray (n,)
        The fold of each training point.
    make_fold : callable
        Fold -> its fit.
    case_weights : ndarray (n,)
        Of the training points as cases.
    """

    def __init__(self, fold_of: np.ndarray, make_fold: Callable[[int], Fold], case_weights: np.ndarray):
        self.fold_of = fold_of
        self._make_fold = make_fold
        self._folds: dict[int, Fold] = {}
        self._case_weights = case_weights

    def fold_without(self, case: int) -> Fold:
        """Return the fit without the fold of a case."""
        number = self.fold_of[case]
        if number not in self._folds:
            self._folds[number] = self._make_fold(number)
        return self._folds[number]

    def choose(self, cases: np.ndarray, *, equal: bool = False, shares: tuple = SHARES) -> Choice:
        """Choose settings by the log score of predictions of held-out cases.

        Of those whose score is within a standard error of the best, the one with the largest share is taken. Settings
        race (Maron and Moore 1994): those that are clearly behind get no further cases, nor do those behind a setting
        with a larger share, since that would be taken in their place.

        Parameters
        ----------
        cases : ndarray
            Indices of training points, in random order.
        equal : bool
            Whether the cases were drawn by their weights, and count the same.
        shares : tuple of float
            Of the training points in a neighborhood, the first of them 1.
        """
        some = self.fold_without(cases[0])
        num_points = int((some.weights > 0.0).sum())
        candidates = [
            Settings(metric, share, along)
            for metric, places in some.places.items()
            for share in shares[0 if metric == "observed" else 1 :]
            if is_large_enough(share, num_points)
            for along in ways(share, num_points, places.shape[1])
        ]
        weights = np.ones(len(cases)) if equal else self._case_weights[cases]
        losses = race(
            candidates, cases, weights, lambda running, case: candidate_losses(self.fold_without(case), running, case)
        )
        all_settings = [c._replace(bandwidth=b) for c in candidates for b in BANDWIDTHS[c.along]]
        columns = [column for rows in losses for column in rows.T]
        best, scores = largest_share_of_best(all_settings, columns, weights)
        return Choice(best, dict(zip(all_settings, scores, strict=True)))

    def prediction(self, settings: Settings, case: int) -> tuple[Mixture, np.ndarray]:
        """Return the distribution of a case's error from a fit without it, and the error (p,); both scaled."""
        fold = self.fold_without(case)
        places = fold.places[settings.metric]
        mixture = residual_mixture(fold.residuals, fold.weights, places, places[case], settings, fold.overall)
        return mixture, fold.errors[case]

    def held_out(self, settings: Settings, cases: np.ndarray) -> HeldOut:
        """Return predictions of cases by fits without them."""
        losses, ranks = [], []
        for case in cases:
            mixture, error = self.prediction(settings, case)
            ranks.append(mixture.cumulative(error))
            losses.append(_loss(error, *mixture, self.fold_without(case).log_density_outside(case)))
        weights = self._case_weights[cases]
        return HeldOut(weights / weights.sum(), np.array(losses), np.stack(ranks))


def candidate_losses(fold: Fold, candidates, case):
    """Return for each candidate minus the log densities of a case, an array over the bandwidths."""
    outside = fold.log_density_outside(case)
    squared, known = {}, {}
    out = []
    for metric, share, along, _ in candidates:
        places = fold.places[metric]
        if metric not in squared:
            squared[metric] = squared_distances(places, places[case])
        weights = near(fold.weights, squared[metric], share)
        # Among ties, neighborhoods of several shares are the same.
        key = (metric, along, weights.tobytes())
        if key not in known:
            residuals, weights = chosen_residuals(fold.residuals, places, places[case], weights, along)
            truth = fold.errors[case]
            known[key] = _losses(truth, residuals, weights, fold.overall, along, outside)
        out.append(known[key])
    return out


def _losses(truth, residuals, weights, overall, along, outside):
    """Return minus the log densities at ``truth``, an array over the bandwidths."""
    bandwidths = np.array(BANDWIDTHS[along])
    if along == "overall":
        return losses_overall(residuals, weights, overall, truth, bandwidths, WIDEST, outside, _OUTSIDE_WEIGHT)
    covariances = own_covariances(residuals, weights, overall)
    return losses_own(residuals, weights, covariances, truth, bandwidths, outside, _OUTSIDE_WEIGHT)


def _loss(truth, weights, centers, factors, outside):
    """Return minus the log density at ``truth`` under a mixture and a little of a wide normal distribution."""
    logs = log_normals(truth - centers, factors)
    top = logs.max()
    inner = top + np.log(weights @ np.exp(logs - top))
    return -np.logaddexp(np.log1p(-_OUTSIDE_WEIGHT) + inner, outside)


def race(candidates, cases, weights, losses_of):
    """Return for each candidate its losses (number of cases, bandwidths); those clearly behind get no further cases."""
    kept = [[] for _ in candidates]
    running = list(range(len(candidates)))
    for start, stop in pairwise((0, *_STAGES)):
        if start >= len(cases):
            break
        for case in cases[start:stop]:
            for i, losses in zip(running, losses_of([candidates[i] for i in running], case), strict=True):
                kept[i].append(losses)
        columns = [np.array(kept[i]) for i in running]
        owners = np.repeat(running, [c.shape[1] for c in columns])
        columns, shares = np.hstack(columns), np.array([candidates[i].share for i in owners])
        is_close = close_to_best(columns, weights[:stop], _CLEAR_DIFFERENCE, _UNSEEN_EXCESS)
        # Of those that stay; the best is never behind one of them.
        is_close[is_close] = may_be_chosen(columns[:, is_close], weights[:stop], shares[is_close])
        running = np.unique(owners[is_close]).tolist()
    return [np.array(rows) for rows in kept]


def may_be_chosen(losses, weights, shares):
    """Return which columns of losses (cases, columns) may still be chosen: none of a larger share is ahead of them."""
    weights = weights / weights.sum()
    means, out = weights @ losses, np.ones(len(shares), dtype=bool)
    for i, share in enumerate(shares):
        larger = np.flatnonzero(shares > share)
        if larger.size:
            excess = losses[:, i] - losses[:, larger[means[larger].argmin()]]
            mean = weights @ excess
            error = np.sqrt(weights**2 @ (excess - mean) ** 2)
            out[i] = mean <= _SLIGHT_DIFFERENCE * error + _UNSEEN_SHORTFALL * (weights**2).sum()
    return out


def close_to_best(losses, weights, errors, unseen=1e-9):
    """Return which columns of losses (cases, columns) are on average near the best.

    Near is within ``errors`` standard errors, plus what one ``unseen`` case could add to the mean excess.
    """
    weights = weights / weights.sum()
    excess = losses - losses[:, [(weights @ losses).argmin()]]
    mean = weights @ excess
    standard_error = np.sqrt(weights**2 @ (excess - mean) ** 2)
    return mean <= errors * standard_error + unseen * (weights**2).sum()


def largest_share_of_best(settings, losses, weights):
    """Return the settings of the largest share among those within a standard error of the best, and all mean losses.

    Settings that were dropped early are scored by their mean excess on the cases until then.
    """
    most = max(map(len, losses))
    finalists = [i for i, rows in enumerate(losses) if len(rows) == most]

    def mean_of(values):
        return float(np.average(values, weights=weights[: len(values)]))

    best = losses[min(finalists, key=lambda i: mean_of(losses[i]))]
    means = [mean_of(best) + mean_of(rows - best[: len(rows)]) for rows in losses]
    is_close = close_to_best(np.stack([losses[i] for i in finalists], axis=1), weights[:most], 1.0)
    chosen = min(np.array(finalists)[is_close], key=lambda i: (-settings[i].share, means[i]))
    return settings[chosen], means
