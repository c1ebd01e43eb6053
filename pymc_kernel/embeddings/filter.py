"""Filtering, prediction and smoothing learnt from a sequence of states and observations. Imports NumPy and siblings."""

import copy
import itertools
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, eigh

from pymc_kernel.embeddings.gram import factorise
from pymc_kernel.embeddings.inputs import as_sample, as_weights, check_positive, median_scales, resolved
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.kernels import Gaussian
from pymc_kernel.linalg import jittered_cholesky
from pymc_kernel.parallel import one_blas_thread

__all__ = ["FilterState", "KernelBayesFilter"]

_GRID = {
    "state_scale": (0.25, 0.5, 1.0),
    "observed_scale": (0.5, 1.0),
    "regularization": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "ratio_regularization": (1e-3, 3e-3, 1e-2),
}
# The original rule's squared operator has eigenvalues of the order of one over the rank, squared.
_ORIGINAL_REGULARIZATIONS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_VALIDATION = 200  # steps, a third of the sequence at most
_METHODS = ("importance", "original")


class FilterState(NamedTuple):
    """What a filter carries from one observation to the next."""

    weights: np.ndarray  # (T,) of the training states, given all observations so far; they sum to one
    predicted: np.ndarray  # (r,) features of the next state's law


class KernelBayesFilter:
    """State-space model learnt from T training pairs, then conditioned on new observations one by one.

    Neither the dynamics nor the noise are given: both come from the training sequence (Fukumizu et al. 2013, section
    4.3; Xu et al. 2022, algorithm 2). All embeddings are weights on the training states.

    Parameters
    ----------
    method : {"importance", "original"}
        See :class:`~pymc_kernel.embeddings.KernelBayesRule`.
    state_kernel, observed_kernel : kernel, optional
        By default Gaussian at ``state_scale`` and ``observed_scale`` times the median distance, spread by spread.
    state_scale, observed_scale : float, optional
    regularization : float, optional
        lambda of Xu et al. or delta of Fukumizu et al., of the update.
    ratio_regularization : float, optional
        Of the ratio in the update and of the transition: eta = lambda' of Xu et al., epsilon of Fukumizu et al. Both
        regularisations are in units of the mean of k(x, x), delta in its square; it is one for radial kernels.
    max_rank, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.gram.factorise`.
    random_state : int or numpy.random.Generator

    Attributes
    ----------
    settings_ : dict
        The four numbers in use.
    validation_error_ : float or None
        Mean squared error of the filter on the end of the training sequence, where something was chosen.

    Notes
    -----
    What is not given is chosen on a grid by filtering the last 200 steps (at most a third) of the training sequence
    with what was learnt from those before. A step costs O(T r^2), r the rank, and O(T r) memory in all.

    Weights are divided by their sum after every step. Without, what the regularisation takes away is lost again at
    each.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.embeddings import KernelBayesFilter
    >>> rng = np.random.default_rng(0)
    >>> angle = 0.3 * np.arange(400)
    >>> states = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.05 * rng.normal(size=(400, 2))
    >>> seen = states + 0.3 * rng.normal(size=(400, 2))
    >>> learnt = KernelBayesFilter().fit(states[:300], seen[:300])
    >>> filtered = learnt.filter(seen[300:])
    >>> bool(((filtered.mean() - states[300:]) ** 2).mean() < 0.5 * ((seen[300:] - states[300:]) ** 2).mean())
    True
    """

    def __init__(
        self,
        method="importance",
        *,
        state_kernel=None,
        observed_kernel=None,
        state_scale=None,
        observed_scale=None,
        regularization=None,
        ratio_regularization=None,
        max_rank=300,
        tolerance=1e-4,
        random_state=0,
    ):
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {method!r}.")
        self.settings = {
            "state_scale": state_scale if state_kernel is None else 1.0,
            "observed_scale": observed_scale if observed_kernel is None else 1.0,
            "regularization": regularization,
            "ratio_regularization": ratio_regularization,
        }
        check_positive(**self.settings)
        self.method = method
        self.state_kernel = state_kernel
        self.observed_kernel = observed_kernel
        self.max_rank = max_rank
        self.tolerance = tolerance
        self.random_state = random_state

    # -- fit -------------------------------------------------------------------------------------------------

    @one_blas_thread
    def fit(self, states, observations) -> "KernelBayesFilter":
        """Learn from one sequence of ``states`` (T, p) and ``observations`` (T, q), in the order of time."""
        states, observations = as_sample(states, "states"), as_sample(observations, "observations")
        if len(states) != len(observations):
            raise ValueError(f"states has {len(states)} rows and observations {len(observations)}: one each a time.")
        if len(states) < 10:
            raise ValueError(f"a filter needs states and observations of at least ten times, got {len(states)}.")
        self.settings_, self.validation_error_ = dict(self.settings), None
        if None in self.settings.values():
            self._choose(states, observations)
        self._learn(states, observations, self.settings_)
        return self

    def _choose(self, states, observations):
        """Try the grid on the end of the sequence."""
        held_out = min(_VALIDATION, len(states) // 3)
        cut = len(states) - held_out
        grid = dict(_GRID)
        if self.method == "original":
            grid["regularization"] = _ORIGINAL_REGULARIZATIONS
        choices = {k: grid[k] if v is None else (v,) for k, v in self.settings.items()}
        trial = copy.copy(self)
        scale = np.maximum(states.var(axis=0), 1e-300)
        tried, factors = {}, {}

        def attempt(place):
            settings = dict(zip(_GRID, place, strict=True))
            if place not in tried:
                known = factors.get(place[:2])
                factors[place[:2]] = trial._learn(states[:cut], observations[:cut], settings, known)
                errors = ((trial.filter(observations[cut:]).mean() - states[cut:]) ** 2).mean(axis=0)
                tried[place] = ((errors / scale).sum(), errors.sum())
            return tried[place][0]

        # Scales, strengths, scales again: the full product costs three times as much and finds next to nothing better.
        place = tuple(v[len(v) // 2] for v in choices.values())
        for _ in range(2):
            scales = itertools.product(choices["state_scale"], choices["observed_scale"])
            place = min(((*pair, *place[2:]) for pair in scales), key=attempt)
            strengths = itertools.product(choices["regularization"], choices["ratio_regularization"])
            place = min(((*place[:2], *pair) for pair in strengths), key=attempt)
        self.settings_, self.validation_error_ = dict(zip(_GRID, place, strict=True)), float(tried[place][1])

    def _learn(self, states, observations, settings, factors=None):
        """Set up all that does not depend on new observations; return the two factors."""
        if factors is None:
            rng = np.random.default_rng(self.random_state)
            factors = (
                self._factor(self.state_kernel, states, settings["state_scale"], rng),
                self._factor(self.observed_kernel, observations, settings["observed_scale"], rng),
            )
        (self.state_kernel_, state_factor), (_, self._observed_factor) = factors
        unit = _mean_square(self._observed_factor.features)
        self._strength = settings["regularization"] * (unit if self.method == "importance" else unit**2)
        self.states_, self._seen = states, self._observed_factor.features
        self._learn_dynamics(state_factor.features, settings["ratio_regularization"])
        return factors

    def _learn_dynamics(self, features, ridge):
        """Set up ratio and transition from the states' ``features`` (T, r) in the order of time."""
        self._features = features
        size, rank = features.shape
        ridge = ridge * _mean_square(features)
        gram = features.T @ features + size * ridge * np.eye(rank)
        # Rows of the ratio r(z_i) = n f_i' (F'F + n eta I)^-1 m for the features m of any law of states.
        self._ratio_rows = size * np.linalg.solve(gram, features.T).T
        before, after = features[:-1], features[1:]
        gram = before.T @ before + (size - 1) * ridge * np.eye(rank)
        # Features of the next state's law from those of this one's; weights on states 2 to T, kept for predictions.
        self._forward_rows = np.linalg.solve(gram, before.T).T
        self._transition = after.T @ self._forward_rows

    def _factor(self, kernel, points, scale, rng):
        if kernel is None:
            kernel = Gaussian(scale * median_scales(points, rng))
        kernel = resolved(kernel, points, rng)
        return kernel, factorise(kernel, points, self.max_rank, self.tolerance, rng)

    def _need_fit(self):
        if not hasattr(self, "states_"):
            raise ValueError("this filter has learnt nothing yet: call fit(states, observations) first.")

    # -- one observation at a time -------------------------------------------------------------------------------

    @one_blas_thread
    def start(self, weights=None) -> FilterState:
        """Return the state before any observation: ``weights`` (T,) on the training states, equal by default."""
        self._need_fit()
        weights = as_weights(weights, len(self.states_), "weights")
        return FilterState(weights, self._features.T @ weights)

    @one_blas_thread
    def update(self, state: FilterState, observation) -> FilterState:
        """Return the state after one more ``observation`` (q,). O(T r^2)."""
        row = as_sample(np.reshape(observation, (1, -1)), "observation")
        return self._step(state.predicted, self._observed_factor(row)[0])

    def _step(self, predicted, query):
        weights = self._updated(self._ratio_rows @ predicted, query)
        return FilterState(weights, self._transition @ (self._features.T @ weights))

    def _updated(self, ratio, query):
        """Return the weights, with sum one, after an observation with features ``query`` (r,); the prior as a ratio."""
        size, rank = self._seen.shape
        if self.method == "importance":
            ratio = np.maximum(0.0, ratio)
            system = (self._seen * ratio[:, None]).T @ self._seen
            system[np.diag_indices(rank)] += size * self._strength
            coefficients = cho_solve((jittered_cholesky(system), True), query)
        else:
            ratio = ratio / size  # sums to about one, so that delta does not depend on T
            values, vectors = eigh((self._seen * ratio[:, None]).T @ self._seen)
            coefficients = vectors @ (values / (values**2 + self._strength) * (vectors.T @ query))
        weights = ratio * (self._seen @ coefficients)
        for candidate in (weights, np.maximum(ratio, 0.0)):
            total = candidate.sum()
            if total > 0.0:
                return candidate / total
            # The observation is unlike anything seen from here: the prediction stands, without an update.
        return np.full(size, 1.0 / size)

    # -- a whole sequence ---------------------------------------------------------------------------------------------

    @one_blas_thread
    def filter(self, observations, initial=None) -> KernelMean:
        """Return the laws of the states given the observations up to each time; the first axis is time.

        Parameters
        ----------
        observations : array_like (S, q)
        initial : array_like (T,), optional
            Weights of the law of the first state on the training states; equal by default.
        """
        state = self.start(initial)
        queries = self._observed_factor(as_sample(observations, "observations"))
        weights = np.empty((len(queries), len(self.states_)))
        for t, query in enumerate(queries):
            state = self._step(state.predicted, query)
            weights[t] = state.weights
        return KernelMean(self.states_, weights, self.state_kernel_)

    @one_blas_thread
    def predict(self, filtered: KernelMean, steps: int = 1) -> KernelMean:
        """Return the laws of the states ``steps`` times after each time of ``filtered``."""
        if not (isinstance(steps, int | np.integer) and steps >= 1):
            raise ValueError(f"steps must be a whole number >= 1, got {steps!r}.")
        weights = np.atleast_2d(filtered.weights)
        for _ in range(steps):
            ahead = np.zeros_like(weights)
            ahead[:, 1:] = (weights @ self._features) @ self._forward_rows.T
            totals = ahead.sum(axis=1, keepdims=True)
            weights = ahead / np.where(totals > 0.0, totals, 1.0)
        return KernelMean(self.states_, weights.reshape(filtered.weights.shape), self.state_kernel_)

    @one_blas_thread
    def smooth(self, filtered: KernelMean, observations) -> KernelMean:
        """Return the laws of the states given all observations: fixed-interval smoothing.

        A second filter learns the training sequence backwards in time and runs backwards over the ``observations``
        (S, q) that ``filtered`` came from. At each time the ratios of both predictions of the state, from what came
        before and from what came after, are multiplied: that is the prior which the observation of that time updates.
        It takes the training sequence for stationary, and the first state for one of it. O(T r^2) a step.
        """
        queries = self._observed_factor(as_sample(observations, "observations"))
        weights = np.atleast_2d(filtered.weights)
        if len(queries) != len(weights):
            raise ValueError(
                f"filtered has {len(weights)} times and observations {len(queries)}: give those it came from."
            )
        backward = copy.copy(self)
        backward._learn_dynamics(self._features[::-1], self.settings_["ratio_regularization"])
        backward._seen = self._seen[::-1]
        smoothed = np.array(weights)
        after = backward._step(backward._features.mean(axis=0), queries[-1]).predicted
        for t in range(len(weights) - 2, -1, -1):
            ratio = np.maximum(0.0, backward._ratio_rows @ after)[::-1]
            if t > 0:
                ratio = ratio * np.maximum(
                    0.0, self._ratio_rows @ (self._transition @ (self._features.T @ weights[t - 1]))
                )
            if ratio.sum() > 0.0:
                smoothed[t] = self._updated(ratio * (len(ratio) / ratio.sum()), queries[t])
            after = backward._step(after, queries[t]).predicted
        return KernelMean(self.states_, smoothed, self.state_kernel_)


def _mean_square(features):
    """Return the mean of k(x, x) over the points."""
    return float(np.einsum("ij,ij->", features, features) / len(features))
