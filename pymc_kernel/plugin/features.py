"""Features of observations learnt for kernel Bayes' rule, by a small network in PyTensor."""

from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymc_kernel.embeddings.gram import factorize
from pymc_kernel.embeddings.inputs import as_sample, as_weights, latent_kernel, scales_of
from pymc_kernel.parallel import one_blas_thread

__all__ = ["LearntFeatures"]

_DECAY_FIRST, _DECAY_SECOND, _TINY = 0.9, 0.999, 1e-8  # of Adam's moments
# Matrix products of a batch are all the work there is: nothing to gain from minutes of compilation.
_MODE = Mode(linker="py", optimizer="fast_compile")
_PATIENCE = 20  # epochs without a better validation loss


class LearntFeatures:
    """Network features psi(x) of observations that predict the embedding of the latents, for images and the like.

    Minimises tr(G (D - D Psi' (Psi D Psi' + lambda I)^-1 Psi D)): what is left of the latents' features after ridge
    regression on psi, the regression solved in closed form (Xu et al. 2022, section 3.3). Use it as
    ``KernelBayesRule(observed_kernel=FeatureKernel(learnt))``.

    Parameters
    ----------
    hidden : sequence of int
        Widths of the hidden layers, with rectified linear units.
    num_features : int
        Of psi.
    latent_kernel : kernel, optional
        On the latents; Gaussian at the median distance by default. The latents themselves, scaled, are predicted too.
    regularization : float
        lambda, in units of a mean over the batch.
    num_epochs, batch_size, learning_rate
        Of Adam (Kingma and Ba 2015). A batch must be larger than ``num_features``.
    validation : float
        Share of the pairs that is held out; after 20 epochs without a better loss there the best weights are kept.
    random_state : int or numpy.random.Generator
    progressbar : bool

    Attributes
    ----------
    losses_ : ndarray (epochs, 2)
        Of training and validation, as shares of the loss without any feature.

    Notes
    -----
    An epoch costs O(n (width products + num_features^2)). Interrupting keeps the best weights so far.
    """

    def __init__(
        self,
        hidden=(128, 64),
        num_features=32,
        *,
        latent_kernel=None,
        regularization=1e-2,
        num_epochs=200,
        batch_size=128,
        learning_rate=1e-3,
        validation=0.2,
        random_state=0,
        progressbar=True,
    ):
        if batch_size <= num_features:
            raise ValueError(f"batch_size must be larger than num_features={num_features}, got {batch_size}.")
        if not 0.0 < validation < 1.0:
            raise ValueError(f"validation must be in (0, 1), got {validation!r}.")
        self.hidden = tuple(hidden)
        self.num_features = num_features
        self.latent_kernel = latent_kernel
        self.regularization = regularization
        self.num_epochs = num_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation = validation
        self.random_state = random_state
        self.progressbar = progressbar

    @one_blas_thread
    def fit(self, latent, observed, weights=None) -> "LearntFeatures":
        """Learn from pairs ``latent`` (n, p) and ``observed`` (n, q), with importance ``weights`` (n,) if given."""
        latent, observed = as_sample(latent, "latent"), as_sample(observed, "observed")
        if len(latent) != len(observed):
            raise ValueError(f"latent has {len(latent)} rows and observed {len(observed)}: they must be pairs.")
        held_out = int(self.validation * len(latent))
        if len(latent) - held_out < self.batch_size or held_out <= self.num_features:
            raise ValueError(
                f"{len(latent)} pairs are too few for batches of {self.batch_size} and {self.num_features} features "
                f"with a share of {self.validation} held out; take smaller ones."
            )
        rng = np.random.default_rng(self.random_state)
        weights = as_weights(weights, len(latent), "weights") * len(latent)
        if (weights < 0.0).any():
            raise ValueError("weights must not be negative.")
        targets = self._targets(latent, rng)
        self._mean, self._scale = scales_of(observed)
        scaled = (observed - self._mean) / self._scale
        order = rng.permutation(len(latent))
        inside, outside = order[held_out:], order[:held_out]
        shares = [_initial(a, b, rng) for a, b in self._layers(observed.shape[1])]
        self._parameters = [p for pair in shares for p in pair]
        self._features, step = self._compile()
        self._train(step, (scaled, targets, weights), inside, outside, rng)
        return self

    @one_blas_thread
    def __call__(self, observed) -> np.ndarray:
        """Return features (m, num_features) of ``observed`` (m, q)."""
        if not hasattr(self, "_features"):
            raise ValueError("these features have learnt nothing yet: call fit(latent, observed) first.")
        scaled = (as_sample(observed, "observed") - self._mean) / self._scale
        return self._features(scaled, *self._parameters)

    def _layers(self, width):
        sizes = [width, *self.hidden, self.num_features]
        return list(pairwise(sizes))

    def _targets(self, latent, rng):
        """Return features of the latents: their kernel's and the scaled latents, each of total variance one."""
        embedded = factorize(latent_kernel(self.latent_kernel, latent, rng), latent, 100, 1e-3, rng).features
        parts = []
        for values in (embedded, latent / scales_of(latent)[1]):
            centred = values - values.mean(axis=0)
            parts.append(centred / np.sqrt(max(np.mean((centred**2).sum(axis=1)), 1e-300)))
        return np.concatenate(parts, axis=1)

    def _compile(self):
        """Return compiled features, and loss with its gradient."""
        points, targets, weights = pt.dmatrix("points"), pt.dmatrix("targets"), pt.dvector("weights")
        parameters = [p for pair in self._layers(1) for p in (pt.dmatrix(), pt.dvector())]
        layer = points
        for k in range(0, len(parameters), 2):
            layer = layer @ parameters[k] + parameters[k + 1]
            if k + 2 < len(parameters):
                layer = pt.maximum(layer, 0.0)
        features = layer / np.sqrt(self.num_features)
        size = points.shape[0].astype("float64")
        # One constant feature keeps the mean of the targets out of what the others must explain.
        psi = pt.concatenate([features, pt.ones((points.shape[0], 1))], axis=1)
        weighted = psi * weights[:, None]
        system = psi.T @ weighted / size + self.regularization * pt.eye(self.num_features + 1)
        cross = weighted.T @ targets / size
        loss = (weights * (targets**2).sum(axis=1)).mean() - (
            cross * pt.linalg.solve(system, cross, assume_a="pos")
        ).sum()
        inputs = [points, targets, weights, *parameters]
        return (
            pytensor.function([points, *parameters], features, mode=_MODE),
            pytensor.function(inputs, [loss, *pytensor.grad(loss, parameters)], mode=_MODE),
        )

    def _validate(self, parameters, data, inside, outside):
        """Return the loss on pairs held out, the regression on the features being that of the others."""
        points, targets, weights = data
        psi = np.column_stack([self._features(points, *parameters), np.ones(len(points))])
        weighted = psi[inside] * weights[inside, None]
        system = psi[inside].T @ weighted / len(inside) + self.regularization * np.eye(psi.shape[1])
        coefficients = np.linalg.solve(system, weighted.T @ targets[inside] / len(inside))
        errors = targets[outside] - psi[outside] @ coefficients
        return float((weights[outside] * (errors**2).sum(axis=1)).mean())

    def _train(self, step, data, inside, outside, rng):
        parameters = [p.copy() for p in self._parameters]
        first, second = [np.zeros_like(p) for p in parameters], [np.zeros_like(p) for p in parameters]
        null = [(w * (t**2).sum(axis=1)).mean() for _, t, w in ([a[i] for a in data] for i in (inside, outside))]
        best, since, count, losses = np.inf, 0, 0, []
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, disable=not self.progressbar) as progress:
            task = progress.add_task("Learning features", total=self.num_epochs)
            try:
                for _ in range(self.num_epochs):
                    order = rng.permutation(inside)
                    found = []
                    for a in range(0, len(order) - self.batch_size + 1, self.batch_size):
                        batch = [values[order[a : a + self.batch_size]] for values in data]
                        value, *gradient = step(*batch, *parameters)
                        count += 1
                        found.append(value)
                        for p, g, m, v in zip(parameters, gradient, first, second, strict=True):
                            m += (1.0 - _DECAY_FIRST) * (g - m)
                            v += (1.0 - _DECAY_SECOND) * (g**2 - v)
                            rate = (
                                self.learning_rate * np.sqrt(1.0 - _DECAY_SECOND**count) / (1.0 - _DECAY_FIRST**count)
                            )
                            p -= rate * m / (np.sqrt(v) + _TINY)
                    validation = self._validate(parameters, data, inside, outside) / null[1]
                    losses.append((np.mean(found) / null[0], validation))
                    since += 1
                    if validation < best:
                        best, since, self._parameters = validation, 0, [p.copy() for p in parameters]
                    progress.update(task, advance=1, description=f"Learning features, loss {validation:.3f}")
                    if since > _PATIENCE:
                        break
            except KeyboardInterrupt:
                pass
        self.losses_ = np.array(losses)


def _initial(before, after, rng):
    """Return weights and biases of one layer (He et al. 2015)."""
    return rng.standard_normal((before, after)) * np.sqrt(2.0 / before), np.zeros(after)
