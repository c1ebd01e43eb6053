"""Score matching with the basis k(Y_j, .): the lite kernel exponential family, and its Nystroem form."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.scores.expansion import radial_expansion
from pymc_kernel.scores.kernel_expansion import KernelExpansion
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure


@dataclass(frozen=True)
class Lite(ScoreMatching):
    """Kernel exponential family with f = sum_j a_j k(Y_j, .), fitted by score matching.

    a = (C + strength R)^-1 b with C_jl = mean of grad k(x, Y_j) . grad k(x, Y_l) and b_j = minus the mean of
    Laplacian k(x, Y_j) + grad log q0(x) . grad k(x, Y_j), over the points x (Strathmann 2018, section 4.2).

    Parameters
    ----------
    kernel : RadialKernel
        At least twice differentiable at zero distance; "median" is resolved on the points.
    regularization : float
        Its strength, above 0.
    penalty : {"l2", "rkhs"}
        R is the identity, or the Gram matrix of the basis.
    base : {"gaussian", "uniform"}
        The base measure q0.
    num_basis : int
        A random subset of the points makes the basis where there are more.

    Notes
    -----
    O(n m^2 + m^3) time for n points and m basis points whatever d is, O((n + m) m) memory.
    """

    smoothness: ClassVar[int] = 2
    penalty: str = "l2"
    num_basis: int = 1000

    def __post_init__(self):
        super().__post_init__()
        if self.penalty not in ("l2", "rkhs"):
            raise ValueError(f'penalty must be "l2" or "rkhs", got {self.penalty!r}.')

    def draw_basis(self, x, rng):
        """Return the points, or a random subset of them."""
        return x if len(x) <= self.num_basis else x[rng.choice(len(x), self.num_basis, replace=False)]

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most, in any number of dimensions."""
        return replace(self, num_basis=min(self.num_basis, size))

    def penalty_matrix(self, basis):
        """Return R, or None for the identity."""
        return None if self.penalty == "l2" else self.kernel(basis)

    def system(self, x, weights, basis, base=None):
        """Return C (m, m), b (m,) and the base measure.

        With P = 2 phi' and u = x / l^2, grad k(x, Y_j) = P_j (u - u_j), so that C = A'B + B'A + (A'A) o (U U') for
        A = sqrt(w) P and B = A o (|u|^2 / 2 - u . u_j): one product and one symmetric one, whatever d is.
        """
        d = x.shape[1]
        base = base_measure(self.base, x, weights) if base is None else base
        inverse_square = self.kernel.inverse_length_scale(d) ** 2
        center = basis.mean(axis=0)
        u, u_basis = (x - center) * inverse_square, (basis - center) * inverse_square
        base_score = base.score(x)
        # First the terms of the slope, Laplacian 4 phi'' |v|^2 + 2 T phi', v = u - u_j, and base score times gradient.
        halves = 0.5 * (u * u).sum(axis=1)[:, None]
        second = halves - u @ u_basis.T  # |u|^2 / 2 - u . u_j
        norm = np.maximum(second + 0.5 * (u_basis**2).sum(axis=1), 0.0)  # |v|^2 / 2
        first = self.kernel.profile_matrix(x, basis, 1)
        first *= 2.0
        terms = (base_score * u).sum(axis=1)[:, None] - base_score @ u_basis.T
        terms += inverse_square.sum()
        terms *= first
        norm *= self.kernel.profile_matrix(x, basis, 2)
        slope = -(weights @ terms) - 8.0 * (weights @ norm)
        first *= np.sqrt(weights)[:, None]
        second *= first
        curvature = first.T @ second
        curvature += curvature.T
        # NumPy sees that this product is symmetric, which costs half.
        square = first.T @ first
        square *= u_basis @ u_basis.T
        curvature += square
        return curvature, slope, base

    def assemble(self, coefficients, basis, base) -> KernelExpansion:
        """Return the surrogate with these coefficients."""
        return KernelExpansion(radial_expansion(self.kernel, basis, coefficients, **base._asdict()))
