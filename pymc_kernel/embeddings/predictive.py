"""Draws around a regression: training residuals, from everywhere or from nearby. Imports NumPy, SciPy, siblings."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

from pymc_kernel.embeddings.adjustment import MOST_DIMENSIONS, adjusted
from pymc_kernel.embeddings.draws import resample, weighted_quantiles
from pymc_kernel.embeddings.inputs import robust_scales

__all__ = ["Predictive"]

_SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of the training points; 1 is global
_FEWEST = 25  # points in a neighbourhood
_CASES = (25, 50, 100, 200, 400)  # for the choice between them; after each, those clearly behind are left out
_CLEARLY = 2.0  # standard errors, and
_RARE = 5.0  # one case as bad as this that has not been met yet
# Along the covariance of all errors, in units of the rule of thumb; along each error's own neighbours', in theirs, with
# errors as they are or moved to the query.
_BANDWIDTHS = {"overall": (1.0, 0.5, 0.25), "own": (1.0, 0.7), "moved": (1.0, 0.7)}
_MOST_OWN = 400  # points up to which errors are smoothed along their own neighbours
_WIDEST = 0.95  # of the residuals' spread
_ELSEWHERE = 0.01  # weight of a wide Gaussian in the score, so that no single case decides


@dataclass(frozen=True, eq=False)
class Predictive:
    """Posterior laws of the form mean(x) + residual, the residual drawn from those of the training points near x.

    With a neighbourhood it is regression-adjusted rejection (Beaumont, Zhang and Balding 2002) around a kernel
    regression; with all points, the residuals' law is taken to be the same everywhere. Residuals are smoothed: by a
    Gaussian along their covariance, drawn together by as much, which keeps mean and covariance (West 1993); or, for
    laws with modes or thin shapes, by one along the covariance of the neighbours of each. For laws whose modes go
    different ways with x, residuals are first moved to x, each by the slope of its own neighbours.

    Attributes
    ----------
    residuals : ndarray (n, p)
        Leave-one-out errors of the means.
    weights : ndarray (n,)
        Of the training points, not negative.
    places : ndarray (n, k)
        Where each training point stands, in the coordinates in which nearness is measured.
    metric : {"observed", "predicted"}
        Nearness in scaled observations, or in predicted means: summaries of the right dimension.
    share : float
        Of the training points in a neighbourhood; 1 for all of them.
    smoothing : tuple
        "overall", "own" or "moved", and the bandwidth.
    scores : dict
        (metric, share, smoothing) -> minus the mean log density of leave-one-out predictions, up to a constant; smaller
        is better. Of a law that was left out early it is that of the best plus how far it was behind.
    """

    residuals: np.ndarray
    weights: np.ndarray
    places: np.ndarray
    location: np.ndarray
    scale: np.ndarray
    metric: str
    share: float
    smoothing: tuple[str, float]
    scores: dict

    @classmethod
    def fit(cls, latent, observed, residuals, weights, rng) -> "Predictive":
        """Choose metric, share and smoothing by the log score of leave-one-out predictions.

        Of those whose score is within a standard error of the best, the one with the largest share is taken. Scores
        are a race (Maron and Moore 1994): up to 400 predictions, fewer for laws that fall clearly behind.
        """
        candidates, alive = [], np.flatnonzero(weights > 0.0)
        for metric, points in (("observed", observed), ("predicted", latent - residuals)):
            location, scale = robust_scales(points)
            places = (points - location) / scale
            for share in _SHARES[0 if metric == "observed" else 1 :]:
                if share == 1.0 or share * len(alive) >= _FEWEST:
                    law = cls(residuals, weights, places, location, scale, metric, share, ("overall", 1.0), {})
                    candidates += [replace(law, smoothing=(along, 1.0)) for along in law._ways(len(alive))]
        overall = _covariance(residuals, weights / weights.sum(), 0.0)
        wide = 3.0 * np.linalg.cholesky(overall)
        chances = weights[alive] / weights[alive].sum()
        cases = rng.choice(alive, size=min(_CASES[-1], len(alive)), replace=False, p=chances)
        surprises = _race(candidates, cases, lambda law, case: law._surprise(case, overall, wide))
        laws = [replace(c, smoothing=(c.smoothing[0], b)) for c in candidates for b in _BANDWIDTHS[c.smoothing[0]]]
        best, scores = _largest_of_the_best(laws, [column for found in surprises for column in found.T])
        return replace(best, scores={(c.metric, c.share, c.smoothing): s for c, s in zip(laws, scores, strict=True)})

    def _ways(self, num_points):
        """Return along what residuals may be smoothed: their own neighbours where there are not too many."""
        count, width = self.share * num_points, self.places.shape[1]
        if count > _MOST_OWN:
            return ["overall"]
        can_move = self.share < 1.0 and width <= min(MOST_DIMENSIONS, count / 3.0)
        return ["overall", "own", "moved"] if can_move else ["overall", "own"]

    def _surprise(self, case, overall, wide):
        """Return minus the log density of the prediction of a training point from the others, for all bandwidths."""
        along, _ = self.smoothing
        weights, errors = self._centres(self.places[case], leave_out=case)
        truth = self.residuals[case]
        outside = np.log(_ELSEWHERE) + _log_normals(truth[None], wide[None])[0]
        found = []
        for centres, factors in _smoothed(errors, weights, overall, along, _BANDWIDTHS[along]):
            logs = _log_normals(truth - centres, factors)
            top = logs.max()
            inner = top + np.log(weights @ np.exp(logs - top))
            found.append(-np.logaddexp(np.log1p(-_ELSEWHERE) + inner, outside))
        return found

    def _centres(self, place, leave_out=None):
        """Return weights (k,) of sum one and the residuals (k, p) that have any, moved to ``place`` if need be."""
        weights = self._near(place, leave_out)
        inside = np.flatnonzero(weights)
        along, _ = self.smoothing
        if along != "overall":
            # Ties, as of counts, can make a neighbourhood any size.
            inside = inside[:: -(-len(inside) // _MOST_OWN)]
        errors, weights = self.residuals[inside], weights[inside] / weights[inside].sum()
        if along != "moved":
            return weights, errors
        # Slopes are not known beyond the points that they are learnt from.
        places = self.places[inside]
        return weights, adjusted(errors, places - np.clip(place, places.min(axis=0), places.max(axis=0)), weights)

    def _near(self, place, leave_out=None):
        """Return the weights (n,) of the residuals at ``place`` (k,): Epanechnikov's, over the share's radius."""
        weights = self.weights
        if leave_out is not None:
            weights = weights.copy()
            weights[leave_out] = 0.0
        alive = np.flatnonzero(weights > 0.0)
        if not len(alive):
            return self.weights  # a single point with weight, which is all there is to say of itself
        if self.share == 1.0:
            return weights
        moves = self.places - place
        squared = np.einsum("ij,ij->i", moves, moves)
        # The radius holds the share of the points that have any weight.
        inside = min(len(alive) - 1, max(_FEWEST, round(self.share * len(alive))))
        radius = np.partition(squared[alive], inside)[inside]
        near = weights * np.maximum(0.0, 1.0 - squared / max(radius, 1e-300))
        return near if near.sum() > 0.0 else weights  # where all of the neighbours coincide with the radius

    def _places(self, means, observed):
        return ((observed if self.metric == "observed" else means) - self.location) / self.scale

    def effective_number(self, means, observed) -> float:
        """Return the smallest effective number of residuals behind the laws for ``means`` at ``observed``."""
        laws = [self._near(place) for place in self._places(means, observed)]
        return float(min(w.sum() ** 2 / (w**2).sum() for w in laws))

    def sample(self, means, observed, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (m, num_draws, p) around ``means`` (m, p) for ``observed`` (m, q)."""
        places = self._places(means, observed)
        overall = _covariance(self.residuals, self.weights / self.weights.sum(), 0.0)
        return np.stack(
            [mean + self._errors(place, num_draws, overall, rng) for mean, place in zip(means, places, strict=True)]
        )

    def _errors(self, place, num_draws, overall, rng):
        weights, errors = self._centres(place)
        chosen = resample(weights, num_draws, rng)
        noise = rng.standard_normal((num_draws, errors.shape[1]))
        along, bandwidth = self.smoothing
        ((centres, factors),) = _smoothed(errors, weights, overall, along, (bandwidth,))
        if len(factors) == 1:
            return centres[chosen] + noise @ factors[0].T
        return centres[chosen] + np.einsum("mij,mj->mi", factors[chosen], noise)

    def quantiles(self, means, observed, probabilities) -> np.ndarray:
        """Return marginal quantiles (m, q, p), without drawing."""
        if self.share == 1.0:
            return means[:, None] + weighted_quantiles(self.residuals, self.weights, probabilities)
        places = self._places(means, observed)
        found = []
        for mean, place in zip(means, places, strict=True):
            weights, errors = self._centres(place)
            found.append(mean + weighted_quantiles(errors, weights, probabilities))
        return np.stack(found)


def _race(laws, cases, surprise):
    """Return for each law its surprises (number of cases, bandwidths); those clearly behind get no further cases."""
    found = [np.empty((0, len(_BANDWIDTHS[law.smoothing[0]]))) for law in laws]
    running = range(len(laws))
    for start, stop in pairwise((0, *_CASES)):
        if start < len(cases):
            for i in running:
                found[i] = np.concatenate([found[i], [surprise(laws[i], case) for case in cases[start:stop]]])
            is_close = _close_to_best(np.hstack([found[i] for i in running]), _CLEARLY, _RARE)
            running = np.unique(np.repeat(running, [found[i].shape[1] for i in running])[is_close])
    return found


def _close_to_best(scores, errors, one_more=1e-9):
    """Return which columns of scores (cases, columns) are on average near the best.

    That is within so many standard errors, and the harm that one more case could do to the best.
    """
    excess = scores - scores[:, [scores.mean(axis=0).argmin()]]
    return excess.mean(axis=0) <= errors * excess.std(axis=0) / np.sqrt(len(scores)) + one_more / len(scores)


def _largest_of_the_best(laws, surprises):
    """Return the law of the largest share among those within a standard error of the best, and all mean surprises.

    A law that was left out early is told by how far it was behind on the cases that it had.
    """
    most = max(map(len, surprises))
    last = [i for i, found in enumerate(surprises) if len(found) == most]
    best = surprises[min(last, key=lambda i: surprises[i].mean())]
    means = [float(best.mean() + (found - best[: len(found)]).mean()) for found in surprises]
    is_close = _close_to_best(np.stack([surprises[i] for i in last], axis=1), 1.0)
    chosen = min(np.array(last)[is_close], key=lambda i: (-laws[i].share, means[i]))
    return laws[chosen], means


def _smoothed(errors, weights, overall, along, bandwidths):
    """Yield for each bandwidth the centres (k, p) and Cholesky factors (k or 1, p, p) of a mixture of normal laws."""
    if along == "overall":
        mean, factor, effective = _moments(errors, weights, overall)
        for bandwidth in bandwidths:
            width, pull = _shrinkage(bandwidth, effective, len(mean))
            yield mean + pull * (errors - mean), width * factor[None]
    else:
        own = _own_factors(errors, weights, overall)
        for bandwidth in bandwidths:
            yield errors, bandwidth * own


def _covariance(errors, weights, mean):
    """Return the weighted covariance, positive definite even where an error is always the same."""
    centred = errors - mean
    found = (centred.T * weights) @ centred
    return found + np.diag(1e-12 + 1e-9 * np.diag(found))


def _moments(errors, weights, overall):
    """Return mean, Cholesky factor of the covariance and effective number of errors; few lean on all of them."""
    mean, d = weights @ errors, errors.shape[1]
    effective = 1.0 / (weights**2).sum()
    lean = d / (d + effective)
    covariance = (1.0 - lean) * _covariance(errors, weights, mean) + lean * overall
    return mean, np.linalg.cholesky(covariance), effective


def _shrinkage(bandwidth, effective, d):
    """Return the width of the smoothing and how far errors are drawn together for it, in their spreads."""
    width = min(bandwidth * (4.0 / (effective * (d + 2.0))) ** (1.0 / (d + 4.0)), _WIDEST)
    return width, np.sqrt(1.0 - width**2)


def _own_factors(errors, weights, overall):
    """Return the Cholesky factors (k, d, d) of the scatter of each error's nearest neighbours around it."""
    k, d = errors.shape
    if k < 3:
        return np.broadcast_to(np.linalg.cholesky(overall), (k, d, d))
    count = min(3 * d + 3, k - 1)
    scaled = errors / np.sqrt(np.diag(overall))
    near = np.argpartition(cdist(scaled, scaled, "sqeuclidean"), count, axis=1)[:, : count + 1]
    differences = errors[near] - errors[:, None]  # (k, count, d)
    own = np.swapaxes(differences, 1, 2) @ differences / count
    lean = d / (d + count)
    pooled = np.einsum("k,kij->ij", weights, own)
    return np.linalg.cholesky((1.0 - lean) * own + lean * pooled + 1e-6 * np.diag(np.diag(overall)))


def _log_normals(differences, factors):
    """Return the log densities (k,) of differences (k, d) under normal laws with Cholesky factors (k or 1, d, d)."""
    if len(factors) == 1:
        scaled = solve_triangular(factors[0], differences.T, lower=True).T
    else:
        scaled = np.linalg.solve(factors, differences[:, :, None])[:, :, 0]
    log_volume = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * (scaled**2).sum(axis=1) - log_volume
