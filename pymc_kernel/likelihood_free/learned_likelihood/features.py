"""Features of parameters: polynomials, bumps in one coordinate, bumps in all; values, and derivatives of their sums.

Imports NumPy and SciPy only.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import expit

_SMALLEST = 1e-5  # eigenvalue of a kernel matrix, relative to the largest, that is a feature
_WIDTH_OF_BUMPS = 6.0  # in standard deviations of a parameter, divided by how many bumps there are
_MAX_DIMS_OF_FINE = 6  # beyond them bumps of half the length scale hardly overlap
_MAX_EXPONENT = 300.0


class Block(NamedTuple):
    """Features that share a prior variance."""

    name: str
    start: int
    stop: int


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
        slope = np.ones_like(parameters)
        for i, kind in enumerate(self.kinds):
            if kind == "exp":
                slope[:, i] = np.exp(np.minimum(parameters[:, i], _MAX_EXPONENT))
            elif kind == "expit":
                chance = expit(parameters[:, i])
                slope[:, i] = chance * (1.0 - chance)
        return slope / self.scale

    @classmethod
    def of(cls, parameters, kinds) -> "ParameterMap":
        """Return the map of these kinds with the center and scale of the parameters (n, d)."""
        columns = transform_columns(parameters, kinds)
        scale = columns.std(axis=0)
        center = columns.mean(axis=0)
        return cls(tuple(kinds), center, np.where(scale > 1e-12 * (1.0 + np.abs(center)), scale, 1.0))


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
    """A constant, then linear, squares, bumps in one coordinate, products, joint bumps.

    Attributes
    ----------
    num_dims : int
    pairs : tuple of ndarray (k,)
        Which coordinates the products multiply.
    knots : ndarray (d, r)
        Centers of the bumps in one coordinate.
    width : float
        Their length scale.
    centers : ndarray (c, d)
        Of the joint bumps, in the coordinates of ``metric``.
    metric : ndarray (d, d)
        The joint kernel is exp(-|metric (z - center)|^2 / 2).
    blocks : tuple of Block
    """

    num_dims: int
    pairs: tuple[np.ndarray, np.ndarray]
    knots: np.ndarray
    width: float
    centers: np.ndarray
    metric: np.ndarray
    blocks: tuple[Block, ...] = field(default=())

    @property
    def has_fine(self) -> bool:
        """Whether there are joint bumps of half the length scale, which are fourth powers of the others."""
        return any(block.name == "fine" for block in self.blocks)

    @property
    def _num_joint(self):
        return len(self.centers) * (2 if self.has_fine else 1)

    @property
    def num_features(self) -> int:
        """How many columns there are."""
        return 1 + 2 * self.num_dims + len(self.pairs[0]) + self.knots.size + self._num_joint

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return features (m, p) of coordinates (m, d)."""
        m, d = z.shape
        out = np.empty((m, self.num_features))
        out[:, 0], out[:, 1 : d + 1], out[:, d + 1 : 2 * d + 1] = 1.0, z, z**2 - 1.0
        at, r = 2 * d + 1, self.knots.shape[1]
        if r:
            bumps = out[:, at : at + d * r]
            for i in range(d):
                np.subtract(z[:, i, None], self.knots[i], out=bumps[:, i * r : (i + 1) * r])
            bumps /= self.width
            np.square(bumps, out=bumps)
            bumps *= -0.5
            np.exp(bumps, out=bumps)
            at += d * r
        rows, columns = self.pairs
        out[:, at : at + len(rows)] = z[:, rows] * z[:, columns]
        at += len(rows)
        c = len(self.centers)
        if c:
            out[:, at : at + c] = _gaussian(z @ self.metric.T, self.centers)
        if self.has_fine:
            np.square(out[:, at : at + c], out=out[:, at + c :])
            np.square(out[:, at + c :], out=out[:, at + c :])
        return out

    def pull_back(self, z: np.ndarray, values: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Return gradients (m, d) by ``z`` of sums of features with ``factors`` (m, p)."""
        d = z.shape[1]
        gradient = factors[:, 1 : d + 1] + 2.0 * factors[:, d + 1 : 2 * d + 1] * z
        at, r = 2 * d + 1, self.knots.shape[1]
        if r:
            pulls = (factors[:, at : at + d * r] * values[:, at : at + d * r]).reshape(-1, d, r)
            gradient += (np.einsum("mir,ir->mi", pulls, self.knots) - pulls.sum(axis=2) * z) / self.width**2
            at += d * r
        rows, columns = self.pairs
        for k in range(len(rows)):
            gradient[:, rows[k]] += factors[:, at + k] * z[:, columns[k]]
            gradient[:, columns[k]] += factors[:, at + k] * z[:, rows[k]]
        at += len(rows)
        c = len(self.centers)
        if c:
            pulls = factors[:, at : at + c] * values[:, at : at + c]
            if self.has_fine:
                pulls += 4.0 * factors[:, at + c :] * values[:, at + c :]
            here = z @ self.metric.T
            gradient += (pulls @ self.centers - pulls.sum(axis=1)[:, None] * here) @ self.metric
        return gradient

    def reduced(self, used: np.ndarray) -> tuple["FeatureMap", np.ndarray]:
        """Return a map without features that nothing uses, as far as they go together, and which (p',) are left."""
        d, (rows, columns), c = self.num_dims, self.pairs, len(self.centers)
        bumps = np.arange(2 * d + 1, 2 * d + 1 + self.knots.size)
        products = np.arange(len(rows)) + 2 * d + 1 + self.knots.size
        joint = np.arange(c) + 2 * d + 1 + self.knots.size + len(rows)
        fine = joint + c if self.has_fine and used[joint + c].any() else joint[:0]
        joint = joint if used[joint].any() or fine.size else joint[:0]
        bumps = bumps if used[bumps].any() else bumps[:0]
        kept = used[products]
        knots = self.knots if bumps.size else self.knots[:, :0]
        centers = self.centers if joint.size else self.centers[:0]
        blocks = tuple(b for b in self.blocks if b.name != "fine" or fine.size)
        index = np.concatenate([np.arange(2 * d + 1), bumps, products[kept], joint, fine])
        return replace(self, pairs=(rows[kept], columns[kept]), knots=knots, centers=centers, blocks=blocks), index

    def whitened(self) -> tuple[np.ndarray, tuple[Block, ...]]:
        """Return a matrix (p, p') and the blocks of its columns; features times it are what is regressed on.

        Under unit weights bumps then have the prior of a Gaussian process; directions that the kernel hardly has are
        left out.
        """
        parts, blocks, at = [np.eye(1)], [], 1
        for block in self.blocks:
            part = np.eye(block.stop - block.start)
            if block.name in ("joint", "fine"):
                part = _inverse_root(_gaussian(self.centers, self.centers) ** (4 if block.name == "fine" else 1))
            elif block.name.startswith("bumps"):
                knots = self.knots[int(block.name.split()[-1])][:, None] / self.width
                part = _inverse_root(_gaussian(knots, knots))
            parts.append(part)
            blocks.append(Block(block.name, at, at + part.shape[1]))
            at += part.shape[1]
        return block_diag(*parts), tuple(blocks)


def _gaussian(points, centers):
    exponent = points @ centers.T
    exponent -= 0.5 * (points**2).sum(axis=1)[:, None]
    exponent -= 0.5 * (centers**2).sum(axis=1)
    np.minimum(exponent, 0.0, out=exponent)
    return np.exp(exponent, out=exponent)


def _inverse_root(kernel):
    values, vectors = np.linalg.eigh(kernel)
    kept = values > _SMALLEST * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])


def make_features(z, rng, num_knots: int, num_centers: int, metric=None) -> FeatureMap:
    """Return the features for training coordinates ``z`` (n, d)."""
    n, d = z.shape
    pairs = np.triu_indices(d, 1)
    levels = (np.arange(num_knots) + 0.5) / max(num_knots, 1)
    knots = np.quantile(z, levels, axis=0).T.copy() if num_knots else np.empty((d, 0))
    metric = np.eye(d) / np.sqrt(d) if metric is None else metric
    width = _WIDTH_OF_BUMPS / max(num_knots, 6)
    centers = spread_centers(z @ metric.T, min(num_centers, n), rng)
    blocks = [Block(f"linear {i}", 1 + i, 2 + i) for i in range(d)]
    blocks += [Block(f"square {i}", d + 1 + i, d + 2 + i) for i in range(d)]
    at = 2 * d + 1
    for i in range(d if num_knots else 0):
        blocks.append(Block(f"bumps {i}", at, at + num_knots))
        at += num_knots
    fine = len(centers) if d <= _MAX_DIMS_OF_FINE else 0
    for name, size in (("product", len(pairs[0])), ("joint", len(centers)), ("fine", fine)):
        if size:
            blocks.append(Block(name, at, at + size))
            at += size
    return FeatureMap(d, pairs, knots, width, centers, metric, tuple(blocks))


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
