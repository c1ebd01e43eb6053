"""Random Fourier features of radial kernels. Imports NumPy and ``kernels.base`` only."""

from dataclasses import dataclass

import numpy as np

from pymc_kernel.kernels.base import RadialKernel, as_points
from pymc_kernel.parallel import one_blas_thread

__all__ = ["RandomFourierFeatures", "random_fourier_features"]


@dataclass(frozen=True, eq=False)
class RandomFourierFeatures:
    """Features whose scalar products approximate a kernel: k(x, y) ~ features(x) . features(y).

    Attributes
    ----------
    frequencies : ndarray (m, d)
        In units of 1 / x.
    phases : ndarray (m,)
        Uniform on [0, 2 pi).
    """

    frequencies: np.ndarray
    phases: np.ndarray

    @one_blas_thread
    def __call__(self, x) -> np.ndarray:
        """Return sqrt(2 / m) cos(x frequencies' + phases), shape (n, m). O(n m d) time."""
        x = as_points(x, "x")
        if x.shape[1] != self.frequencies.shape[1]:
            raise ValueError(
                f"x has {x.shape[1]} dimensions, but the features were drawn for {self.frequencies.shape[1]}."
            )
        return np.sqrt(2.0 / self.phases.size) * np.cos(x @ self.frequencies.T + self.phases)


def random_fourier_features(
    kernel: RadialKernel, num_features: int, num_dims: int, rng: np.random.Generator
) -> RandomFourierFeatures:
    """Return random Fourier features of a radial kernel (Rahimi and Recht 2007).

    Parameters
    ----------
    kernel
        Gaussian, Matern, Laplace, rational quadratic or inverse multiquadric, with a numeric length scale.
    num_features : int
        The error of one kernel value has a standard deviation of about 1 / sqrt(num_features).
    num_dims : int
        Dimension of the points.
    rng : numpy.random.Generator
        Draws frequencies and phases.

    Notes
    -----
    The frequencies of exp(-r^2 / (2 l^2)) are N(0, l^-2 I); the heavier spectra are normal scale mixtures.
    """
    if not isinstance(kernel, RadialKernel):
        raise TypeError(f"only radial kernels have a spectral density, got {type(kernel).__name__}.")
    if num_features < 1:
        raise ValueError(f"num_features must be at least 1, got {num_features}.")
    inverse = kernel.inverse_length_scale(num_dims)
    frequencies = kernel.sample_frequencies(num_features, num_dims, rng) * inverse
    return RandomFourierFeatures(frequencies, rng.uniform(0.0, 2.0 * np.pi, size=num_features))
