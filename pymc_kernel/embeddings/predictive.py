"""Draws around a regression: training residuals, from everywhere or from nearby. Imports NumPy, SciPy, siblings."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial import KDTree
from scipy.special import logsumexp

from pymc_kernel.embeddings.draws import resample, weighted_quantiles
from pymc_kernel.embeddings.inputs import robust_scales

__all__ = ["Predictive"]

_SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of the training points; 1 is global
_FEWEST = 25  # points in a neighbourhood
_CASES = 200  # for the choice between them
# Along the covariance of all errors, in units of the rule of thumb; along each error's own neighbours', in theirs.
_SMOOTHINGS = (("overall", 1.0), ("overall", 0.5), ("overall", 0.25), ("own", 1.0), ("own", 0.5))
_MOST_OWN = 400  # points up to which errors are smoothed along their own neighbours
_NEVER = 1e9  # a score that is never the best
_WIDEST = 0.95  # of the residuals' spread
_ELSEWHERE = 0.01  # weight of a wide Gaussian in the score, so that no single case decides


@dataclass(frozen=True, eq=False)
class Predictive:
    """Posterior laws of the form mean(x) + residual, the residual drawn from those of the training points near x.

    With a neighbourhood it is regression-adjusted rejection (Beaumont, Zhang and Balding 2002) around a kernel
    regression; with all points, the residuals' law is taken to be the same everywhere. Residuals are smoothed: by a
    Gaussian along their covariance, drawn together by as much, which keeps mean and covariance (West 1993); or, for
    laws with modes or thin shapes, by one along the covariance of the neighbours of each.

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
        Along which covariance, and how widely.
    scores : dict
        (metric, share, smoothing) -> minus the mean log density of leave-one-out predictions; smaller is better.
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

        Of those whose score is within a standard error of the best, the one with the largest share is taken.
        """
        candidates = []
        for metric, points in (("observed", observed), ("predicted", latent - residuals)):
            location, scale = robust_scales(points)
            places = (points - location) / scale
            for share in _SHARES[0 if metric == "observed" else 1 :]:
                if share == 1.0 or share * len(latent) >= _FEWEST:
                    candidates.append(
                        cls(residuals, weights, places, location, scale, metric, share, _SMOOTHINGS[0], {})
                    )
        cases = resample(weights / weights.sum(), min(_CASES, len(latent)), rng)
        overall = _covariance(residuals, weights / weights.sum(), 0.0)
        wide = 3.0 * np.linalg.cholesky(overall)
        scores = np.array([[c._surprise(case, overall, wide) for case in cases] for c in candidates])
        scores = scores.transpose(0, 2, 1).reshape(-1, len(cases))
        candidates = [replace(c, smoothing=s) for c in candidates for s in _SMOOTHINGS]
        best = int(scores.mean(axis=1).argmin())
        excess = scores - scores[best]
        close = excess.mean(axis=1) <= excess.std(axis=1) / np.sqrt(len(cases)) + 1e-9
        best = min(np.flatnonzero(close), key=lambda c: (-candidates[c].share, scores[c].mean()))
        summary = {
            (c.metric, c.share, c.smoothing): float(s) for c, s in zip(candidates, scores.mean(axis=1), strict=True)
        }
        return replace(candidates[best], scores=summary)

    def _surprise(self, case, overall, wide):
        """Return minus the log density (smoothings,) of the prediction of a training point from the others."""
        weights, errors = self._nearby(self.places[case], leave_out=case)
        truth = self.residuals[case]
        outside = _log_normals(truth[None], wide[None])[0]
        mean, factor, effective = _moments(errors, weights, overall)
        own = _own_factors(errors, weights, overall) if 3 <= len(errors) <= _MOST_OWN else None
        found = []
        for along, bandwidth in _SMOOTHINGS:
            if along == "own" and own is None:
                found.append(_NEVER)
                continue
            if along == "own":
                logs = _log_normals(truth - errors, bandwidth * own)
            else:
                width, pull = _shrinkage(bandwidth, effective, len(mean))
                logs = _log_normals(truth - mean - pull * (errors - mean), width * factor[None])
            inner = logsumexp(logs, b=weights)
            found.append(-np.logaddexp(np.log1p(-_ELSEWHERE) + inner, np.log(_ELSEWHERE) + outside))
        return found

    def _nearby(self, place, leave_out=None):
        """Return weights (k,) of sum one and the residuals (k, p) that have any."""
        weights = self._near(place, leave_out)
        inside = np.flatnonzero(weights)
        return weights[inside] / weights.sum(), self.residuals[inside]

    def _near(self, place, leave_out=None):
        """Return the weights (n,) of the residuals at ``place`` (k,): Epanechnikov's, over the share's radius."""
        weights = self.weights
        if self.share < 1.0:
            squared = ((self.places - place) ** 2).sum(axis=1)
            if leave_out is not None:
                squared[leave_out] = np.inf
            # The radius holds the share of the points that have any weight.
            alive = np.flatnonzero(weights > 0.0)
            inside = min(len(alive) - 1, max(_FEWEST, round(self.share * len(alive))))
            radius = np.partition(squared[alive], inside)[inside]
            weights = weights * np.maximum(0.0, 1.0 - squared / max(radius, 1e-300))
            if weights.sum() > 0.0:
                return weights
            weights = self.weights  # all of the neighbours coincide with the radius
        if leave_out is not None:
            weights = weights.copy()
            weights[leave_out] = 0.0
        return weights

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
        weights, errors = self._nearby(place)
        chosen = resample(weights, num_draws, rng)
        noise = rng.standard_normal((num_draws, errors.shape[1]))
        along, bandwidth = self.smoothing
        if along == "own":
            factors = bandwidth * _own_factors(errors, weights, overall)
            return errors[chosen] + np.einsum("mij,mj->mi", factors[chosen], noise)
        mean, factor, effective = _moments(errors, weights, overall)
        width, pull = _shrinkage(bandwidth, effective, len(mean))
        return mean + pull * (errors[chosen] - mean) + noise @ (width * factor).T

    def quantiles(self, means, observed, probabilities) -> np.ndarray:
        """Return marginal quantiles (m, q, p), without drawing."""
        if self.share == 1.0:
            return means[:, None] + weighted_quantiles(self.residuals, self.weights, probabilities)
        places = self._places(means, observed)
        return np.stack(
            [
                mean + weighted_quantiles(self.residuals, self._near(place), probabilities)
                for mean, place in zip(means, places, strict=True)
            ]
        )


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
    count = min(2 * d + 2, k - 1)
    scaled = errors / np.sqrt(np.diag(overall))
    near = KDTree(scaled).query(scaled, k=count + 1)[1][:, 1:]
    differences = errors[near] - errors[:, None]  # (k, count, d)
    own = np.einsum("kci,kcj->kij", differences, differences) / count
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
