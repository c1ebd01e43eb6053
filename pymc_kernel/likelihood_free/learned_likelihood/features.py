"""Features of parameters: polynomials, bumps in one coordinate, bumps in all; values, and derivatives of their sums."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import block_diag
from scipy.special import expit

from pymc_kernel.kernels.points import scales_of

_SMALLEST = 1e-5  # eigenvalue of a kernel matrix, relative to the largest, above which its direction is a feature
_WIDTH_OF_BUMPS = 6.0  # in standard deviations of a parameter, divided by how many bumps there are
_MAX_DIMS_OF_FINE = 6  # beyond them bumps of half the length scale hardly overlap
_MAX_EXPONENT = 300.0


@dataclass(frozen=True)
class ParameterMap:
    """Parameters to coordinates of mean zero and unit spread: identity, exponential or logistic, then standardized.

    On the unconstrained scale of a model the parameter that the simulator saw is the exponential of a coordinate, or
    its logistic function, and the summaries are simple functions of that.
    """

    kinds: tuple[str, ...]
    center: np.ndarray
    scale: np.ndarray

    def __call__(self, parameters: np.ndarray) -> np.ndarray:
        """Return coordinates (m, d)."""
        return (transform_columns(parameters, self.kinds) - self.center) / self.scale

    def slope(self, parameters: np.ndarray) -> np.ndarray:
        """Return the derivatives (m, d) of coordinates by their parameters."""
        slope = transform_columns(parameters, self.kinds)  # of an exponential it is that itself
        for i, kind in enumerate(self.kinds):
            if kind == "identity":
                slope[:, i] = 1.0
            elif kind == "expit":
                slope[:, i] *= 1.0 - slope[:, i]
        return slope / self.scale

    @classmethod
    def of(cls, parameters, kinds) -> "ParameterMap":
        """Return the map of these kinds with the center and scale of the parameters (n, d)."""
        return cls(tuple(kinds), *scales_of(transform_columns(parameters, kinds)))


def transform_columns(parameters, kinds) -> np.ndarray:
    """Return each column transformed by its kind."""
    columns = np.array(parameters, dtype=float)
    for i, kind in enumerate(kinds):
        if kind == "exp":
            columns[:, i] = np.exp(np.minimum(columns[:, i], _MAX_EXPONENT))
        elif kind == "expit":
            columns[:, i] = expit(columns[:, i])
    return columns


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A constant, then linear, squares, bumps in one coordinate, products, joint bumps, finer joint bumps."""

    pairs: tuple[np.ndarray, np.ndarray]  # (k,) each: which coordinates the products multiply
    knots: np.ndarray  # (d, r), centers of the bumps in one coordinate
    width: float  # their length scale
    centers: np.ndarray  # (c, d), of the joint bumps, in the coordinates of the metric
    metric: np.ndarray  # (d, d); the joint kernel is exp(-|metric (z - center)|^2 / 2)
    has_fine: bool  # joint bumps of half the length scale, which are fourth powers of the others

    @cached_property
    def _places(self) -> list[slice]:
        """The slices of linear, square, bump, product, joint and fine features."""
        (d, r), c = self.knots.shape, len(self.centers)
        ends = np.cumsum([1, d, d, d * r, len(self.pairs[0]), c, c * self.has_fine])
        return [slice(start, stop) for start, stop in pairwise(ends.tolist())]

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return features (m, p) of coordinates (m, d)."""
        linear, squares, bumps, products, joint, fine = self._places
        out = np.empty((len(z), fine.stop))
        out[:, 0], out[:, linear], out[:, squares] = 1.0, z, z**2 - 1.0
        away = (z[:, :, None] - self.knots) / self.width
        out[:, bumps] = np.exp(-0.5 * away**2).reshape(len(z), self.knots.size)
        rows, columns = self.pairs
        out[:, products] = z[:, rows] * z[:, columns]
        out[:, joint] = _gaussian(z @ self.metric.T, self.centers)
        if self.has_fine:
            out[:, fine] = np.square(np.square(out[:, joint]))
        return out

    def pull_back(self, z: np.ndarray, values: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Return gradients (..., m, d) by ``z`` (m, d) of sums of features (m, p) with ``factors`` (..., m, p)."""
        linear, squares, bumps, products, joint, fine = self._places
        gradient = factors[..., linear] + 2.0 * factors[..., squares] * z
        if self.knots.size:
            pulls = factors[..., bumps] * values[:, bumps]
            pulls = pulls.reshape(*pulls.shape[:-1], *self.knots.shape)
            gradient += (np.einsum("...ir,ir->...i", pulls, self.knots) - pulls.sum(axis=-1) * z) / self.width**2
        for row, column, factor in zip(*self.pairs, np.moveaxis(factors[..., products], -1, 0), strict=True):
            gradient[..., row] += factor * z[:, column]
            gradient[..., column] += factor * z[:, row]
        if len(self.centers):
            pulls = factors[..., joint] * values[:, joint]
            if self.has_fine:
                pulls += 4.0 * factors[..., fine] * values[:, fine]
            here = z @ self.metric.T
            gradient += (pulls @ self.centers - pulls.sum(axis=-1)[..., None] * here) @ self.metric
        return gradient

    def reduced(self, used: np.ndarray) -> tuple["FeatureMap", np.ndarray]:
        """Return a map without products and groups of features that nothing uses, and the indices (p',) of the rest."""
        _, squares, bumps, products, joint, fine = self._places
        left, has_fine = used.copy(), bool(used[fine].any())
        left[: squares.stop], left[bumps], left[fine] = True, used[bumps].any(), has_fine
        left[joint] = has_fine or used[joint].any()
        pairs = self.pairs[0][used[products]], self.pairs[1][used[products]]
        knots = self.knots if left[bumps].any() else self.knots[:, :0]
        centers = self.centers if left[joint].any() else self.centers[:0]
        return replace(self, pairs=pairs, knots=knots, centers=centers, has_fine=has_fine), np.flatnonzero(left)

    def whitened(self) -> tuple[np.ndarray, dict[str, int]]:
        """Return a matrix (p, p'), and the blocks of its columns: name -> size.

        Features times this matrix are the regressors. Those of a block share a prior variance: linear, square and bump
        features of each coordinate; products, joint and fine bumps of all. With independent weights of one variance,
        bumps then have the prior of a Gaussian process; directions in which the kernel matrix is nearly singular are
        left out.
        """
        single, joint = range(len(self.knots)), _gaussian(self.centers, self.centers)
        parts = {f"{name} {i}": np.eye(1) for name in ("linear", "square") for i in single}
        for i, knots in enumerate(self.knots[:, :, None] / self.width):
            parts[f"bumps {i}"] = _inverse_root(_gaussian(knots, knots))
        parts |= {"product": np.eye(len(self.pairs[0])), "joint": _inverse_root(joint)}
        if self.has_fine:
            parts["fine"] = _inverse_root(joint**4)
        return block_diag(1.0, *parts.values()), {name: part.shape[1] for name, part in parts.items() if part.size}


def _gaussian(points, centers):
    exponent = points @ centers.T  # in place: less than half the time that squared distances and their copies take
    exponent -= 0.5 * (points**2).sum(axis=1)[:, None]
    exponent -= 0.5 * (centers**2).sum(axis=1)
    np.minimum(exponent, 0.0, out=exponent)
    return np.exp(exponent, out=exponent)


def _inverse_root(kernel):
    values, vectors = np.linalg.eigh(kernel)
    kept = values > _SMALLEST * values.max(initial=0.0)
    return vectors[:, kept] / np.sqrt(values[kept])


def make_features(z, rng, num_knots: int, num_centers: int, metric=None) -> FeatureMap:
    """Return the features for training coordinates ``z`` (n, d)."""
    n, d = z.shape
    levels = (np.arange(num_knots) + 0.5) / max(num_knots, 1)
    knots = np.quantile(z, levels, axis=0).T.copy()
    metric = np.eye(d) / np.sqrt(d) if metric is None else metric
    width = _WIDTH_OF_BUMPS / max(num_knots, 6)
    centers = spread_centers(z @ metric.T, min(num_centers, n), rng)
    has_fine = len(centers) > 0 and d <= _MAX_DIMS_OF_FINE
    return FeatureMap(np.triu_indices(d, 1), knots, width, centers, metric, has_fine)


def spread_centers(points, number, rng) -> np.ndarray:
    """Return a random subset of points, greedily those farthest from the ones before."""
    if number <= 0:
        return np.empty((0, points.shape[1]))
    pool = points[rng.choice(len(points), min(len(points), 20 * number), replace=False)]
    chosen, distance = [0], ((pool - pool[0]) ** 2).sum(axis=1)
    for _ in range(number - 1):
        # Random among the far ones: the farthest of all are outliers.
        nearest = int(np.argmax(distance * rng.random(len(pool))))
        chosen.append(nearest)
        distance = np.minimum(distance, ((pool - pool[nearest]) ** 2).sum(axis=1))
    return pool[np.array(chosen)]
