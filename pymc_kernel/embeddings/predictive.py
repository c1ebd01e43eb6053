"""Draws around a regression: training residuals, from everywhere or from nearby. Imports NumPy and siblings."""

from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.embeddings.draws import resample, weighted_quantiles
from pymc_kernel.embeddings.inputs import robust_scales, scales_of

__all__ = ["Predictive"]

_SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the training points; 1 is global
_FEWEST = 50  # points in a neighbourhood
_CASES, _DRAWS = 200, 300  # for the choice between them


@dataclass(frozen=True, eq=False)
class Predictive:
    """Posterior laws of the form mean(x) + residual, the residual drawn from those of the training points near x.

    With a neighbourhood it is regression-adjusted rejection (Beaumont, Zhang and Balding 2002) around a kernel
    regression; with all points, the residuals' law is taken to be the same everywhere.

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
    scores : dict
        (metric, share) -> energy score in leave-one-out prediction, smaller is better.
    """

    residuals: np.ndarray
    weights: np.ndarray
    places: np.ndarray
    location: np.ndarray
    scale: np.ndarray
    metric: str
    share: float
    scores: dict

    @classmethod
    def fit(cls, latent, observed, residuals, weights, rng) -> "Predictive":
        """Choose metric and share by the energy score of leave-one-out predictions (Gneiting and Raftery 2007).

        The largest share is taken whose score is within a standard error of the best.
        """
        candidates = []
        spread = scales_of(latent, weights)[1]
        for metric, points in (("observed", observed), ("predicted", latent - residuals)):
            location, scale = robust_scales(points)
            places = (points - location) / scale
            for share in _SHARES[0 if metric == "observed" else 1 :]:
                if share == 1.0 or share * len(latent) >= _FEWEST:
                    candidates.append(cls(residuals, weights, places, location, scale, metric, share, {}))
        cases = resample(weights / weights.sum(), min(_CASES, len(latent)), rng)
        scores = np.array([[c._energy(case, spread, rng) for case in cases] for c in candidates])
        best = int(scores.mean(axis=1).argmin())
        # Of those within a standard error of the best, the one with most residuals to draw from.
        excess = scores - scores[best]
        close = excess.mean(axis=1) <= excess.std(axis=1) / np.sqrt(len(cases))
        best = min(np.flatnonzero(close), key=lambda c: (-candidates[c].share, scores[c].mean()))
        summary = {(c.metric, c.share): float(s) for c, s in zip(candidates, scores.mean(axis=1), strict=True)}
        return replace(candidates[best], scores=summary)

    def _energy(self, case, spread, rng):
        """Return E|Z - z| - E|Z - Z'| / 2 for the prediction of a training point from the others."""
        weights = self._near(self.places[case], leave_out=case)
        errors = self.residuals[resample(weights, 2 * _DRAWS, rng)]
        away = np.sqrt((((errors - self.residuals[case]) / spread) ** 2).sum(axis=1))
        pairs = np.sqrt((((errors[:_DRAWS] - errors[_DRAWS:]) / spread) ** 2).sum(axis=1))
        return away.mean() - 0.5 * pairs.mean()

    def _near(self, place, leave_out=None):
        """Return the weights (n,) of the residuals at ``place`` (k,): Epanechnikov's, over the share's radius."""
        weights = self.weights
        if self.share < 1.0:
            squared = ((self.places - place) ** 2).sum(axis=1)
            if leave_out is not None:
                squared[leave_out] = np.inf
            # The radius holds the share of the points that have any weight.
            alive = np.flatnonzero(weights > 0.0)
            inside = min(len(alive) - 1, max(_FEWEST, int(self.share * len(alive))))
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
        return np.stack(
            [
                mean + self.residuals[resample(self._near(place), num_draws, rng)]
                for mean, place in zip(means, places, strict=True)
            ]
        )

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
