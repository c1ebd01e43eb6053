"""The probability of an event given parameters: logistic regression on the blocks of features, by evidence.

Imports NumPy, SciPy and siblings only.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, log_expit

from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_parameter_map
from pymc_kernel.likelihood_free.learned_likelihood.evidence import fit_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.stages import Design
from pymc_kernel.parallel import one_blas_thread

_MAX_STEPS = 30  # of Newton's method
_LONGEST = 3.0  # change of a logit in one step
_MOVED = 0.02  # change of a logit below which steps end
_LEAST_CURVATURE = 1e-3  # of the log likelihood of a case, so that certain cases leave the steps bounded
_LARGEST = 30.0  # logit
_ROWS = 4096  # at once, so that memory stays bounded


@dataclass(frozen=True, eq=False)
class Chance:
    """The probability of an event as a function of parameters; with an offset, a correction of another one's logit.

    Attributes
    ----------
    parameters : ParameterMap
    features : FeatureMap
    weights : ndarray (p,)
        Of the features in the logit.
    replicates : ndarray (r, p)
        Draws of what they might as well be.
    """

    parameters: ParameterMap
    features: FeatureMap
    weights: np.ndarray
    replicates: np.ndarray

    def replicate(self, number: int) -> "Chance":
        """Return one of the replicates in place of the estimate."""
        return replace(self, weights=self.replicates[number], replicates=self.replicates[:0])

    @one_blas_thread
    def log_probability(self, parameters, offset=0.0) -> np.ndarray:
        """Return log probabilities (m,) at parameters (m, d), given the offset (m,) of the logit, if there is one."""
        return self._evaluate(parameters, False, offset)[0]

    @one_blas_thread
    def log_probability_and_gradient(self, parameters) -> tuple[np.ndarray, np.ndarray]:
        """Return log probabilities (m,) and their gradients (m, d)."""
        return self._evaluate(parameters, True, 0.0)

    def _evaluate(self, parameters, gradient, offset):
        offset = np.broadcast_to(offset, len(parameters))
        logits, slopes = np.empty(len(parameters)), np.zeros(np.shape(parameters))
        for start in range(0, len(parameters), _ROWS):
            rows = slice(start, start + _ROWS)
            part = parameters[rows]
            z = self.parameters(part)
            features = self.features(z)
            free = features @ self.weights + offset[rows]
            logits[rows] = np.clip(free, -_LARGEST, _LARGEST)
            if gradient:
                pulls = np.where(free == logits[rows], expit(-free), 0.0)
                back = self.features.pull_back(z, features, pulls[:, None] * self.weights)
                slopes[rows] = back * self.parameters.slope(part)
        return log_expit(logits), slopes


@one_blas_thread
def learn_chance(parameters, happened, rng, sizes, num_replicates: int, weights=None, offset=None) -> Chance:
    """Return the probability of an event learned from cases (n,) with ``weights`` in which it ``happened`` or did not.

    ``sizes`` takes n and d and returns how many bumps in each parameter, and how many in all. Replicates are draws of
    the weights from a normal approximation of their posterior distribution. What is learned is added to the ``offset``
    of the logits (n,), and is nothing where there are no cases.

    Newton's steps for the penalized likelihood, precisions of the blocks of features by MacKay's updates between them:
    C. K. I. Williams, D. Barber, "Bayesian classification with Gaussian processes" (1998).
    """
    n, d = parameters.shape
    cases = np.ones(n) if weights is None else weights
    offset = np.zeros(n) if offset is None else offset
    places = choose_parameter_map(parameters, happened[:, None] - expit(offset)[:, None], rng)
    z = places(parameters)
    design = Design(make_features(z, rng, *sizes(n, d)), z)
    fit = _fitted(design, happened.astype(float), cases, offset)
    drawn = np.zeros((num_replicates, len(fit.weights)))
    drawn[:, fit.active] = rng.standard_normal((num_replicates, len(fit.active))) @ fit.factor
    return Chance(places, design.map, design.whitening @ fit.weights, (fit.weights + drawn) @ design.whitening.T)


def _fitted(design, happened, cases, offset):
    """Return weights of the whitened features at the largest penalized likelihood."""
    weights = np.zeros(design.values.shape[1])
    if not offset.any():
        weights[0] = np.log((cases @ happened + 0.5) / (cases @ (1.0 - happened) + 0.5))
    precisions = None
    for _ in range(_MAX_STEPS):
        logits = design.values @ weights
        chance = expit(np.clip(logits + offset, -_LARGEST, _LARGEST))
        curvature = np.maximum(chance * (1.0 - chance), _LEAST_CURVATURE)
        response = logits + (happened - chance) / curvature
        own = cases * curvature
        given = design.gram(own), design.values.T @ (own * response), own @ response**2, len(happened), design.blocks
        fit = fit_blocks(*given, precisions, 1.0, 20 if precisions is None else 2)
        change = design.values @ (fit.weights - weights)
        longest = np.abs(change).max()
        weights = weights + min(1.0, _LONGEST / max(longest, 1e-300)) * (fit.weights - weights)
        precisions = fit.precisions
        if longest < _MOVED:
            break
    return fit
