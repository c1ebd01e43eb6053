"""Distributions of the precision of a Gaussian kernel: Wishart, or gamma by coordinate. Imports NumPy and siblings."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.density.propagation import log_gamma_constant, log_wishart_constant

__all__ = ["STRUCTURES", "GammaPosterior", "WishartPosterior", "precision_prior"]

STRUCTURES = ("full", "diagonal", "isotropic")


class WishartPosterior(NamedTuple):
    """|L|^((dof - d - 1) / 2) exp(-tr(inverse_scale L) / 2): mean dof inverse_scale^-1."""

    dof: float
    inverse_scale: np.ndarray  # (d, d)

    def mean(self) -> np.ndarray:
        """Return the expected precision (d, d)."""
        return self.dof * np.linalg.inv(self.inverse_scale)

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return precisions (size, d, d), by Bartlett's decomposition."""
        d = len(self.inverse_scale)
        lower = np.tril(rng.standard_normal((size, d, d)), -1)
        lower[:, np.arange(d), np.arange(d)] = np.sqrt(rng.chisquare(self.dof - np.arange(d), size=(size, d)))
        root = np.linalg.cholesky(np.linalg.inv(self.inverse_scale)) @ lower
        return root @ root.transpose(0, 2, 1)

    def concentration(self) -> float:
        """Return the degrees of freedom, which grow with the data."""
        return self.dof

    def log_constant(self) -> float:
        """Return the log of the integral of the density as it is written above."""
        d = len(self.inverse_scale)
        return float(log_wishart_constant(self.dof, np.linalg.slogdet(self.inverse_scale)[1], d))


class GammaPosterior(NamedTuple):
    """Independent l_k^(shape_k - 1) exp(-rate_k l_k), one for each coordinate or one for all."""

    shape: np.ndarray  # (g,)
    rate: np.ndarray  # (g,)
    groups: np.ndarray  # (d,) of int: which of them each coordinate has

    def mean(self) -> np.ndarray:
        """Return the expected precision (d, d)."""
        return np.diag((self.shape / self.rate)[self.groups])

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return precisions (size, d, d)."""
        drawn = rng.gamma(self.shape, 1.0 / self.rate, size=(size, len(self.shape)))[:, self.groups]
        return drawn[:, :, None] * np.eye(len(self.groups))

    def concentration(self) -> float:
        """Return the sum of the shapes, which grow with the data."""
        return float(self.shape.sum())

    def log_constant(self) -> float:
        """Return the log of the integral of the density as it is written above."""
        return float(sum(log_gamma_constant(a, b) for a, b in zip(self.shape, self.rate, strict=True)))


def precision_prior(structure: str, rate: np.ndarray, shape: float | None) -> WishartPosterior | GammaPosterior:
    """Return the prior of a structure, with rates (d,) and a shape; see ``BayesianKDE``."""
    d = len(rate)
    if structure == "full":
        dof = d + 1.0 if shape is None else float(shape)
        if dof <= d - 1:
            raise ValueError(f"prior_shape must be above d - 1 = {d - 1} for a full precision, got {dof}.")
        return WishartPosterior(dof, np.diag(2.0 * rate))
    shape = 1.0 if shape is None else float(shape)
    if structure == "diagonal":
        return GammaPosterior(np.full(d, shape), rate, np.arange(d))
    return GammaPosterior(np.array([shape]), np.array([rate.mean()]), np.zeros(d, dtype=np.int64))
