"""Posteriors around a regression, by all of its residuals or by nearby ones. Imports NumPy and siblings."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.adjustment import MOST_DIMENSIONS, adjusted, neighbor_scatter
from pymc_kernel.embeddings.mixture import Mixture

__all__ = [
    "BANDWIDTHS",
    "WIDEST",
    "Predictive",
    "Settings",
    "chosen_residuals",
    "covariance",
    "is_large_enough",
    "near",
    "own_covariances",
    "residual_mixture",
    "smoothed",
    "squared_distances",
    "ways",
]

# Along the covariance of all residuals, in units of the rule of thumb; along each residual's own neighbors', in theirs,
# with residuals as they are or moved to the query.
BANDWIDTHS = {"overall": (1.0, 0.5, 0.25), "own": (1.0, 0.7), "moved": (1.0, 0.7)}
_MIN_NEIGHBORS = 25  # points in a neighborhood
_MAX_OWN = 250  # points up to which residuals are smoothed along their own neighbors: time and memory O(k^2)
_ROUNDING = 1e-9  # of the coordinates: places that differ by less are tied
WIDEST = 0.95  # of the residuals' spread, for the normal distribution that they are smoothed by


class Settings(NamedTuple):
    """Which residuals a posterior takes, and how they are smoothed."""

    metric: str = "observed"
    """Nearness in scaled observations ("observed"), or in posterior means ("predicted")."""
    share: float = 1.0
    """Of the training points in a neighborhood; 1 for all of them."""
    along: str = "overall"
    """Smoothing along the covariance of all residuals, of each one's neighbors, or the latter once moved."""
    bandwidth: float = 1.0


@dataclass(frozen=True, eq=False)
class Predictive:
    """Posteriors of the form mean(x) + residual, the residual one of the training points near x.

    With a neighborhood it is regression-adjusted rejection (Beaumont, Zhang and Balding 2002) around a kernel
    regression; with all points, residuals are taken to have the same distribution everywhere. Residuals are smoothed:
    by a normal distribution along their covariance, and shrunk so that mean and covariance are kept (West 1993); or,
    for posteriors with modes or thin shapes, by one along the covariance of the neighbors of each. For posteriors whose
    modes depend differently on x, residuals are first moved to x, each by the slope of its own neighbors.

    Attributes
    ----------
    residuals : ndarray (n, p)
        Leave-one-out residuals of the means, in units of the parameters' spreads.
    weights : ndarray (n,)
        Of the training points, not negative.
    places : ndarray (n, k)
        Coordinates of the training points in which nearness is measured: equal for tied observations.
    settings : Settings
    """

    residuals: np.ndarray
    weights: np.ndarray
    places: np.ndarray
    settings: Settings

    def at(self, place: np.ndarray) -> Mixture:
        """Return the distribution of the residual for a query at ``place`` (k,)."""
        return residual_mixture(self.residuals, self.weights, self.places, place, self.settings, self._overall)

    @cached_property
    def _overall(self):
        return covariance(self.residuals, self.weights / self.weights.sum())

    def effective_number(self, place: np.ndarray) -> float:
        """Return the effective number of training points behind the posterior of a query at ``place`` (k,)."""
        weights = near(self.weights, squared_distances(self.places, place), self.settings.share)
        return float(weights.sum() ** 2 / (weights**2).sum())


def residual_mixture(residuals, weights, places, place, settings: Settings, overall) -> Mixture:
    """Return the distribution of the residual at ``place`` (k,), ``overall`` (p, p) the covariance of all of them."""
    weights = near(weights, squared_distances(places, place), settings.share)
    residuals, weights = chosen_residuals(residuals, places, place, weights, settings.along)
    ((centers, factors),) = smoothed(residuals, weights, overall, settings.along, (settings.bandwidth,))
    return Mixture(weights, centers, factors)


def squared_distances(places: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the squared distances (n,) of ``places`` (n, k) from ``place`` (k,); what is rounding counts as zero."""
    moves = places - place
    squared = np.einsum("ij,ij->i", moves, moves)
    rounding = _ROUNDING**2 * max(np.abs(places).max(), np.abs(place).max()) ** 2
    return np.where(squared > rounding, squared, 0.0)


def ways(share: float, num_points: int, width: int) -> list[str]:
    """Return the kinds of smoothing for a neighborhood: along residuals' own neighbors, too, if it is small."""
    count = share * num_points
    if count > _MAX_OWN:
        return ["overall"]
    can_move = share < 1.0 and width <= min(MOST_DIMENSIONS, count / 3.0)
    return ["overall", "own", "moved"] if can_move else ["overall", "own"]


def is_large_enough(share: float, num_points: int) -> bool:
    """Return whether a share of the points is a neighborhood."""
    return share == 1.0 or share * num_points >= _MIN_NEIGHBORS


def near(weights: np.ndarray, squared: np.ndarray, share: float) -> np.ndarray:
    """Return the weights (n,) of the points around a query: Epanechnikov's, over the share's radius.

    Parameters
    ----------
    weights : ndarray (n,)
        Of the training points, not negative.
    squared : ndarray (n,)
        Squared distances from the query.
    share : float
        Of the points with weight, within the radius.
    """
    alive = np.flatnonzero(weights > 0.0)
    if share == 1.0 or len(alive) < 2:
        return weights
    inside = min(len(alive) - 1, max(_MIN_NEIGHBORS, round(share * len(alive))))
    radius = np.partition(squared[alive], inside)[inside]
    smooth = weights * np.maximum(0.0, 1.0 - squared / max(radius, 1e-300))
    return smooth if smooth.sum() > 0.0 else weights * (squared <= radius)  # where all neighbors are as far off


def chosen_residuals(residuals, places, place, weights, along):
    """Return the residuals (k, p) that have weight, moved to ``place`` if need be, and weights (k,) of sum one."""
    inside = np.flatnonzero(weights)
    if along != "overall":
        # Ties, as of counts, can make a neighborhood any size.
        inside = inside[:: -(-len(inside) // _MAX_OWN)]
    chosen, weights = residuals[inside], weights[inside] / weights[inside].sum()
    if along != "moved":
        return chosen, weights
    # Slopes do not extrapolate beyond the points that they are learned from.
    around = places[inside]
    return adjusted(chosen, around - np.clip(place, around.min(axis=0), around.max(axis=0)), weights), weights


def smoothed(residuals, weights, overall, along, bandwidths):
    """Yield for each bandwidth the centers (k, p) and Cholesky factors (k or 1, p, p) of a mixture of normals."""
    if along == "overall":
        mean, factor, effective = _moments(residuals, weights, overall)
        for bandwidth in bandwidths:
            width, pull = _shrinkage(bandwidth, effective, len(mean))
            yield mean + pull * (residuals - mean), width * factor[None]
    else:
        own = np.linalg.cholesky(np.moveaxis(own_covariances(residuals, weights, overall), 2, 0))
        for bandwidth in bandwidths:
            yield residuals, bandwidth * own


def covariance(residuals, weights, mean=0.0):
    """Return the weighted covariance of scaled residuals, positive definite even where one is always the same."""
    centered = residuals - mean
    scatter = (centered.T * weights) @ centered
    return scatter + np.diag(1e-12 + 1e-9 * np.diag(scatter))


def _moments(residuals, weights, overall):
    """Return mean, Cholesky factor of the covariance, shrunk to that of all where few, and the effective number."""
    mean, p = weights @ residuals, residuals.shape[1]
    effective = 1.0 / (weights**2).sum()
    lean = p / (p + effective)
    blended = (1.0 - lean) * covariance(residuals, weights, mean) + lean * overall
    return mean, np.linalg.cholesky(blended), effective


def _shrinkage(bandwidth, effective, p):
    """Return the width of the smoothing in spreads of the residuals, and the factor that shrinks these for it."""
    width = min(bandwidth * (4.0 / (effective * (p + 2.0))) ** (1.0 / (p + 4.0)), WIDEST)
    return width, np.sqrt(1.0 - width**2)


def own_covariances(residuals, weights, overall):
    """Return the scatter (p, p, k) of each residual's nearest neighbors around it, shrunk to that of all."""
    k, p = residuals.shape
    if k < 3:
        return np.repeat(overall[:, :, None], k, axis=2)
    count = min(3 * p + 3, k - 1)
    own = neighbor_scatter(residuals, np.sqrt(np.diag(overall)), count)
    lean = p / (p + count)
    pooled = own @ weights + (1e-6 / lean) * np.diag(np.diag(overall))
    return (1.0 - lean) * own + lean * pooled[:, :, None]
