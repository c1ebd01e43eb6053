"""Embeddings of conditional distributions, with the sum and chain rules."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_kernel.embeddings.inputs import check_pairs, latent_kernel
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.ridge import GramFactor, RidgePath, factorize, least_error
from pymc_kernel.kernels import Product
from pymc_kernel.kernels.points import as_points, as_weights, check_between
from pymc_kernel.parallel import one_blas_thread


@dataclass(frozen=True)
class ConditionalMean:
    """Embedding of the distribution of outputs given inputs (Song et al. 2009; Fukumizu et al. 2013, equation 19).

    Weights for an input x: F (F'F + n lambda I)^-1 q(x), which is (G + n lambda I)^-1 k(x) where the factor is exact.
    Fit O(n r^2), condition O(n r).

    Parameters
    ----------
    input_kernel, output_kernel : kernel, optional
        By default Gaussian at the median distance, with coordinates in units of their spread.
    regularization : float, optional
        By default chosen by the leave-one-out error of the outputs' features.
    num_basis, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.ridge.factorize`.
    """

    input_kernel: Any = None
    output_kernel: Any = None
    regularization: float | None = None
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        check_between("regularization", high=np.inf, regularization=self.regularization)

    @one_blas_thread
    def fit(self, inputs, outputs, weights=None, *, rng=None) -> "FittedConditionalMean":
        """Return the embedding learned from pairs, rows of ``inputs`` (n, q) and ``outputs`` (n, p).

        Their ``weights`` (n,) are not negative, equal by default; ``rng`` is a generator or a seed.
        """
        inputs, outputs = as_points(inputs, "inputs"), as_points(outputs, "outputs")
        check_pairs(inputs=inputs, outputs=outputs)
        weights = as_weights(weights, len(inputs)) * len(inputs)
        rng = np.random.default_rng(rng)
        input_kernel = latent_kernel(self.input_kernel, inputs, rng)
        output_kernel = latent_kernel(self.output_kernel, outputs, rng)
        factor = factorize(input_kernel, inputs, self.num_basis, self.tolerance, rng)
        path, regularization = RidgePath.of(factor.features, weights), self.regularization
        if regularization is None:
            targets = factorize(output_kernel, outputs, self.num_basis, self.tolerance, rng).features
            regularization = least_error(path, targets)
        return FittedConditionalMean(inputs, outputs, input_kernel, output_kernel, factor, path, regularization)


@dataclass(frozen=True, eq=False)
class FittedConditionalMean:
    """The distribution of outputs given any input, as weights on the training outputs."""

    inputs: np.ndarray  #: (n, q)
    outputs: np.ndarray  #: (n, p)
    input_kernel: Any
    output_kernel: Any
    factor: GramFactor  #: features of the inputs
    path: RidgePath
    regularization: float

    @one_blas_thread
    def weights(self, inputs) -> np.ndarray:
        """Return the weights (m, n) of the outputs for ``inputs`` (m, q)."""
        return self.path.coefficients(self.factor.extend(as_points(inputs, "inputs")), self.regularization)

    @one_blas_thread
    def condition(self, inputs) -> KernelMean:
        """Return the embeddings of the distributions of outputs given ``inputs`` (m, q)."""
        return KernelMean(self.outputs, self.weights(inputs), self.output_kernel)

    @one_blas_thread
    def sum_rule(self, inputs: KernelMean) -> KernelMean:
        """Return the embedding of the outputs' distribution for inputs distributed as ``inputs``."""
        return KernelMean(self.outputs, inputs.weights @ self.weights(inputs.points), self.output_kernel)

    @one_blas_thread
    def chain_rule(self, inputs: KernelMean) -> KernelMean:
        """Return the embedding of the joint distribution of input and output for inputs distributed as ``inputs``."""
        split = self.inputs.shape[1]
        kernel = Product([self.input_kernel, self.output_kernel], [slice(0, split), slice(split, None)])
        joint = np.concatenate([self.inputs, self.outputs], axis=1)
        return KernelMean(joint, self.sum_rule(inputs).weights, kernel)
