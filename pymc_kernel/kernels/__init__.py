"""Positive definite kernels: values, derivatives, random features, bandwidths."""

from pymc_kernel.kernels.base import DotProductKernel, Kernel, RadialKernel
from pymc_kernel.kernels.families import (
    FeatureKernel,
    Gaussian,
    InverseMultiquadric,
    Laplace,
    Linear,
    Matern32,
    Matern52,
    Polynomial,
    Product,
    RandomFourierFeatures,
    RationalQuadratic,
    Sum,
    random_fourier_features,
)
from pymc_kernel.kernels.points import median_distance

__all__ = [
    "DotProductKernel", "FeatureKernel", "Gaussian", "InverseMultiquadric", "Kernel", "Laplace", "Linear", "Matern32",
    "Matern52", "Polynomial", "Product", "RadialKernel", "RandomFourierFeatures", "RationalQuadratic", "Sum",
    "median_distance", "random_fourier_features",
]  # fmt: skip
