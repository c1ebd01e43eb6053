"""Positive definite kernels: values, derivatives, random features, bandwidths."""

from pymc_kernel.kernels.bandwidth import median_distance
from pymc_kernel.kernels.base import DotProductKernel, Kernel, RadialKernel
from pymc_kernel.kernels.composite import FeatureKernel, Product, Sum
from pymc_kernel.kernels.families import (
    Gaussian,
    InverseMultiquadric,
    Laplace,
    Linear,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
)
from pymc_kernel.kernels.features import RandomFourierFeatures, random_fourier_features

__all__ = [
    "DotProductKernel",
    "FeatureKernel",
    "Gaussian",
    "InverseMultiquadric",
    "Kernel",
    "Laplace",
    "Linear",
    "Matern32",
    "Matern52",
    "Polynomial",
    "Product",
    "RadialKernel",
    "RandomFourierFeatures",
    "RationalQuadratic",
    "Sum",
    "median_distance",
    "random_fourier_features",
]
