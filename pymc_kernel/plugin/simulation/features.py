"""Features of observations learned for kernel Bayes' rule, by a small network in PyTensor."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc_kernel.embeddings.inputs import check_pairs, latent_kernel
from pymc_kernel.embeddings.ridge import factorize
from pymc_kernel.kernels.points import as_points, as_weights, check_between, scales_of
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.model.interpreter import QUICK
from pymc_kernel.plugin.progress import progress_bar

_PATIENCE = 20  # epochs without a better validation loss


@dataclass(frozen=True)
class LearnedFeatures:
    """Network features psi(x) of observations that predict the embedding of the latents, for images and the like.

    Minimizes tr(G (D - D Psi' (Psi D Psi' + lambda I)^-1 Psi D)): the residual of the latents' features after ridge
    regression on psi, solved in closed form (Xu et al. 2022, section 3.3). Use what ``fit`` returns as
    ``KernelBayesRule(observed_kernel=FeatureKernel(features))``.

    Parameters
    ----------
    hidden : sequence of int
        Widths of the hidden layers, with rectified linear units.
    num_features : int
        Number of features psi.
    latent_kernel : kernel, optional
        On the latents; Gaussian at the median distance by default. The latents themselves, scaled, are predicted too.
    regularization : float
        lambda, beside means over the batch, not sums.
    num_epochs, batch_size, learning_rate
        Of Adam (Kingma and Ba 2015). A batch must be larger than ``num_features``.
    validation : float
        Share of pairs held out; training stops after 20 epochs without a better loss there and keeps the best weights.

    Notes
    -----
    An epoch costs O(n (width products + num_features^2)). Interrupting keeps the best weights so far.
    """

    hidden: tuple[int, ...] = (128, 64)
    num_features: int = 32
    latent_kernel: Any = None
    regularization: float = 1e-2
    num_epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation: float = 0.2

    def __post_init__(self):
        if self.batch_size <= self.num_features:
            raise ValueError(f"batch_size must be larger than num_features={self.num_features}, got {self.batch_size}.")
        check_between(validation=self.validation)

    @one_blas_thread
    def fit(self, latent, observed, weights=None, *, rng=None, progressbar: bool = True) -> "FittedFeatures":
        """Return the features learned from pairs: latent (n, p), observed (n, q).

        They may have weights (n,), such as importance weights. ``rng`` is a number or a ``numpy.random.Generator``.
        """
        latent, observed = as_points(latent, "latent"), as_points(observed, "observed")
        check_pairs(latent=latent, observed=observed)
        held_out = int(self.validation * len(latent))
        if len(latent) - held_out < self.batch_size or held_out <= self.num_features:
            raise ValueError(
                f"{len(latent)} pairs are too few for batches of {self.batch_size} and {self.num_features} features "
                f"with a share of {self.validation} held out; take smaller ones."
            )
        rng = np.random.default_rng(rng)
        weights = as_weights(weights, len(latent)) * len(latent)
        targets = self._targets(latent, rng)
        mean, scale = scales_of(observed)
        data = (observed - mean) / scale, targets, weights
        order = rng.permutation(len(latent))
        split = order[held_out:], order[:held_out]
        sizes = [observed.shape[1], *self.hidden, self.num_features]
        # Weights and biases of the layers (He et al. 2015).
        initial = [(rng.standard_normal((a, b)) * np.sqrt(2.0 / a), np.zeros(b)) for a, b in pairwise(sizes)]
        parameters = [pytensor.shared(p) for layer in initial for p in layer]
        function, step = self._compile(parameters)
        losses = self._train(function, step, parameters, data, split, rng, progressbar)
        return FittedFeatures(function, mean, scale, losses)

    def _targets(self, latent, rng):
        """Return features of the latents: their kernel's and the scaled latents, each of total variance one."""
        embedded = factorize(latent_kernel(self.latent_kernel, latent, rng), latent, 100, 1e-3, rng).features
        parts = []
        for values in (embedded, latent / scales_of(latent)[1]):
            centered = values - values.mean(axis=0)
            parts.append(centered / np.sqrt(max(np.mean((centered**2).sum(axis=1)), 1e-300)))
        return np.concatenate(parts, axis=1)

    def _compile(self, parameters):
        """Return two compiled functions: the features, and the loss of a batch, which also takes a step of Adam."""
        points, targets, weights = pt.dmatrix("points"), pt.dmatrix("targets"), pt.dvector("weights")
        layer = points @ parameters[0] + parameters[1]
        for slopes, offsets in zip(parameters[2::2], parameters[3::2], strict=True):
            layer = pt.maximum(layer, 0.0) @ slopes + offsets
        features = layer / np.sqrt(self.num_features)
        size = points.shape[0].astype("float64")
        # A constant feature explains the mean of the targets, so that the others need not.
        psi = pt.concatenate([features, pt.ones((points.shape[0], 1))], axis=1)
        weighted = psi * weights[:, None]
        system = psi.T @ weighted / size + self.regularization * pt.eye(self.num_features + 1)
        cross = weighted.T @ targets / size
        explained = (cross * pt.linalg.solve(system, cross, assume_a="pos")).sum()
        loss = (weights * (targets**2).sum(axis=1)).mean() - explained
        updates = pm.adam(loss, parameters, learning_rate=self.learning_rate)
        step = pytensor.function([points, targets, weights], loss, updates=updates, mode=QUICK)
        return pytensor.function([points], features, mode=QUICK), step

    def _validation_loss(self, psi, data, inside, outside):
        """Return the loss on held-out pairs of the regression on the features ``psi`` of the other pairs."""
        _, targets, weights = data
        psi = np.column_stack([psi, np.ones(len(psi))])
        weighted = psi[inside] * weights[inside, None]
        system = psi[inside].T @ weighted / len(inside) + self.regularization * np.eye(psi.shape[1])
        coefficients = np.linalg.solve(system, weighted.T @ targets[inside] / len(inside))
        errors = targets[outside] - psi[outside] @ coefficients
        return float((weights[outside] * (errors**2).sum(axis=1)).mean())

    def _train(self, function, step, parameters, data, split, rng, progressbar):
        """Train, set the parameters with the smallest validation loss, and return the losses (epochs, 2)."""
        inside, outside = split
        null = [(w * (t**2).sum(axis=1)).mean() for _, t, w in ([a[i] for a in data] for i in (inside, outside))]
        best, best_loss, best_epoch, losses = [p.get_value() for p in parameters], np.inf, 0, []
        with progress_bar("Learning features", self.num_epochs, progressbar) as advance:
            try:
                for _ in range(self.num_epochs):
                    order = rng.permutation(inside)
                    starts = range(0, len(order) - self.batch_size + 1, self.batch_size)
                    batch_losses = [step(*(v[order[a : a + self.batch_size]] for v in data)) for a in starts]
                    loss = self._validation_loss(function(data[0]), data, inside, outside) / null[1]
                    losses.append((np.mean(batch_losses) / null[0], loss))
                    if loss < best_loss:
                        best, best_loss, best_epoch = [p.get_value() for p in parameters], loss, len(losses)
                    advance(words=f"Learning features, loss {loss:.3f}")
                    if len(losses) - best_epoch > _PATIENCE:
                        break
            except KeyboardInterrupt:
                pass
        for parameter, value in zip(parameters, best, strict=True):
            parameter.set_value(value)
        return np.array(losses)


@dataclass(frozen=True, eq=False)
class FittedFeatures:
    """Features of observations by a trained network.

    ``mean`` and ``scale`` (q,) are those of the training observations. ``losses`` (epochs, 2) are of training and
    validation, as shares of the loss without any feature.
    """

    function: Callable[..., np.ndarray]  # from scaled observations to features
    mean: np.ndarray
    scale: np.ndarray
    losses: np.ndarray

    @one_blas_thread
    def __call__(self, observed) -> np.ndarray:
        """Return features (m, num_features) of ``observed`` (m, q)."""
        return self.function((as_points(observed, "observed") - self.mean) / self.scale)
