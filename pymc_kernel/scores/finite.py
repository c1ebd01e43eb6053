"""Score matching with finitely many random features."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels.families import random_fourier_features
from pymc_kernel.scores.expansion import cosine_expansion
from pymc_kernel.scores.kernel_expansion import KernelExpansion
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure


@dataclass(frozen=True)
class Finite(ScoreMatching):
    """Kernel exponential family with f = theta . features(x), random Fourier features of a kernel.

    theta = (C + strength I)^-1 b with C the mean of the sum over dimensions of outer products of feature
    derivatives and b minus the mean of their summed second derivatives (Strathmann 2018, section 4.2; no factor
    one half anywhere).

    Parameters
    ----------
    kernel : RadialKernel
        One with a spectral density; "median" is resolved on the points.
    num_features : int
    regularization : float
        Its strength, above 0.
    base : {"gaussian", "uniform"}
        The base measure q0.

    Notes
    -----
    O(n m (m + d) + m^3) time for m features, O(n m) memory.
    """

    smoothness: ClassVar[int] = 0
    num_features: int = 300

    def draw_basis(self, x, rng):
        """Return frequencies and phases of random features."""
        features = random_fourier_features(self.kernel, self.num_features, x.shape[1], rng)
        return features.frequencies, features.phases

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most, in any number of dimensions."""
        return replace(self, num_features=min(self.num_features, size))

    def system(self, x, weights, basis, base=None):
        """Return C (m, m), b (m,) and the base measure. With S = sin(x W' + p), C = 2 / m (W W') o (S' diag(w) S)."""
        frequencies, phases = basis
        base = base_measure(self.base, x, weights) if base is None else base
        angles = x @ frequencies.T + phases
        sines = np.sin(angles)
        scale = np.sqrt(2.0 / len(phases))
        slope = scale * (weights @ np.cos(angles)) * (frequencies**2).sum(axis=1)
        slope += scale * (weights @ (sines * (base.score(x) @ frequencies.T)))
        weighted = sines * np.sqrt(weights)[:, None]
        curvature = scale**2 * (frequencies @ frequencies.T) * (weighted.T @ weighted)
        return curvature, slope, base

    def assemble(self, theta, basis, base) -> KernelExpansion:
        """Return the surrogate with these coefficients."""
        frequencies, phases = basis
        scale = np.sqrt(2.0 / len(phases))
        phases = phases + frequencies @ base.center
        return KernelExpansion(cosine_expansion(frequencies, phases, scale * theta, **base._asdict()))
