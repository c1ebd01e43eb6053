"""Embeddings of conditional laws, with the sum and chain rules. Imports NumPy and siblings."""

import numpy as np

from pymc_kernel.embeddings.gram import factorise
from pymc_kernel.embeddings.inputs import as_sample, as_weights, check_positive, latent_kernel, scales_of
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.ridge import RidgePath, choose_regularization
from pymc_kernel.kernels import Product
from pymc_kernel.parallel import one_blas_thread

__all__ = ["ConditionalMean"]


class ConditionalMean:
    """Embedding of the law of outputs given inputs (Song et al. 2009; equation 19 of Fukumizu et al. 2013).

    Parameters
    ----------
    input_kernel, output_kernel : kernel, optional
        By default Gaussian at the median distance, spread by spread.
    regularization : float, optional
        By default chosen for what ``target`` says.
    target : {"embedding", "outputs"}
        Features of the outputs, by leaving one out, or the outputs themselves, by the evidence.
    max_rank, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.gram.factorise`.
    random_state : int or numpy.random.Generator

    Attributes
    ----------
    regularization_ : float
    rank_ : int

    Notes
    -----
    Weights for an input x: F (F'F + n lambda I)^-1 q(x), which is (G + n lambda I)^-1 k(x) where the factor is exact.
    Fit O(n r^2), condition O(n r).
    """

    def __init__(
        self,
        input_kernel=None,
        output_kernel=None,
        *,
        regularization=None,
        target="embedding",
        max_rank=300,
        tolerance=1e-3,
        random_state=0,
    ):
        if target not in ("embedding", "outputs"):
            raise ValueError(f'target must be "embedding" or "outputs", got {target!r}.')
        check_positive(regularization=regularization)
        self.input_kernel = input_kernel
        self.output_kernel = output_kernel
        self.regularization = regularization
        self.target = target
        self.max_rank = max_rank
        self.tolerance = tolerance
        self.random_state = random_state

    @one_blas_thread
    def fit(self, inputs, outputs, weights=None) -> "ConditionalMean":
        """Learn from pairs ``inputs`` (n, q) and ``outputs`` (n, p), with non-negative ``weights`` (n,) if given."""
        inputs, outputs = as_sample(inputs, "inputs"), as_sample(outputs, "outputs")
        if len(inputs) != len(outputs):
            raise ValueError(f"inputs has {len(inputs)} rows and outputs {len(outputs)}: they must be pairs.")
        weights = as_weights(weights, len(inputs), "weights") * len(inputs)
        if (weights < 0.0).any():
            raise ValueError("weights of the pairs must not be negative.")
        rng = np.random.default_rng(self.random_state)
        kernels = [
            latent_kernel(kernel, points, rng)
            for kernel, points in ((self.input_kernel, inputs), (self.output_kernel, outputs))
        ]
        self.input_kernel_, self.output_kernel_ = kernels
        self.inputs_, self.outputs_ = inputs, outputs
        self._factor = factorise(self.input_kernel_, inputs, self.max_rank, self.tolerance, rng)
        self.rank_ = self._factor.rank
        self._path = RidgePath.of(self._factor.features, weights)
        self.regularization_ = self.regularization
        if self.regularization is None:
            if self.target == "outputs":
                mean, scale = scales_of(outputs, weights)
                targets = (outputs - mean) / scale
            else:
                targets = factorise(self.output_kernel_, outputs, self.max_rank, self.tolerance, rng).features
            criterion = "evidence" if self.target == "outputs" else "leave-one-out"
            self.regularization_, _ = choose_regularization(self._path, targets, criterion)
        return self

    @one_blas_thread
    def weights(self, inputs) -> np.ndarray:
        """Return the weights (m, n) of the outputs for ``inputs`` (m, q)."""
        self._need_fit()
        return self._path.coefficients(self._factor(as_sample(inputs, "inputs")), self.regularization_)

    @one_blas_thread
    def condition(self, inputs) -> KernelMean:
        """Return the embeddings of the outputs' laws given ``inputs`` (m, q)."""
        return KernelMean(self.outputs_, self.weights(inputs), self.output_kernel_)

    @one_blas_thread
    def sum_rule(self, inputs: KernelMean) -> KernelMean:
        """Return the embedding of the outputs' law when the inputs have the law of ``inputs``."""
        return KernelMean(self.outputs_, self._carried(inputs), self.output_kernel_)

    @one_blas_thread
    def chain_rule(self, inputs: KernelMean) -> KernelMean:
        """Return the embedding of the joint law of (input, output) when the inputs have the law of ``inputs``."""
        split = self.inputs_.shape[1]
        kernel = Product([self.input_kernel_, self.output_kernel_], [slice(0, split), slice(split, None)])
        joint = np.concatenate([self.inputs_, self.outputs_], axis=1)
        return KernelMean(joint, self._carried(inputs), kernel)

    def _carried(self, inputs):
        """Return the average weights over laws of inputs: they are linear in the features, so these are averaged."""
        self._need_fit()
        features = np.atleast_2d(inputs.weights) @ self._factor(inputs.points)
        return self._path.coefficients(features, self.regularization_).reshape(*inputs.weights.shape[:-1], -1)

    def _need_fit(self):
        if not hasattr(self, "_path"):
            raise ValueError("nothing learnt yet: call fit(inputs, outputs) first.")
