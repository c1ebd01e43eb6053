"""Filtering, prediction and smoothing learned from a sequence of states and observations."""

import copy
import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pymc_kernel.embeddings.bayes_rule import SignedRule
from pymc_kernel.embeddings.inputs import check_pairs, median_scales, resolved
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.ridge import GramFactor, factorize
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import as_points, as_weights, check_between, check_whole
from pymc_kernel.linalg import jittered_solve
from pymc_kernel.parallel import one_blas_thread

_METHODS = ("importance", "original")
_MAX_VALIDATION = 200  # steps, a third of the sequence at most


class FilterSettings(NamedTuple):
    """The tuning parameters of a filter."""

    state_scale: Any  # of the default kernels, in median distances
    observed_scale: Any
    regularization: Any
    ratio_regularization: Any


_GRID = FilterSettings((0.25, 0.5, 1.0), (0.5, 1.0), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (1e-3, 3e-3, 1e-2))
_ORIGINAL_REGULARIZATIONS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # the squared operator's eigenvalues are about 1 / rank^2


class FilterState(NamedTuple):
    """The state of a filter between two observations."""

    weights: np.ndarray  # (T,) of the training states, given all observations so far; they sum to one
    predicted: np.ndarray  # (r,) mean features of the next state


@dataclass(frozen=True)
class KernelBayesFilter:
    """State-space model learned from T training pairs, then conditioned on new observations one by one.

    Neither the dynamics nor the noise are given: both come from the training sequence (Fukumizu et al. 2013, section
    4.3; Xu et al. 2022, algorithm 2). All embeddings are weights on the training states. Settings that are not given
    are chosen on a grid, by filtering the last 200 steps (at most a third) of the training sequence after learning from
    the earlier ones. A step costs O(T r^2), r the rank, and O(T r) memory in all. Weights are divided by their sum
    after every step; otherwise the regularization would shrink them at each step.

    Parameters
    ----------
    method : {"importance", "original"}
        The update is that of :class:`~pymc_kernel.embeddings.KernelBayesRule`, or of
        :class:`~pymc_kernel.embeddings.OriginalBayesRule`.
    state_kernel, observed_kernel : kernel or float, optional
        A number stands for a Gaussian kernel at that many median distances of scaled points; by default it is chosen.
    regularization : float, optional
        lambda of Xu et al. or delta of Fukumizu et al., of the update.
    ratio_regularization : float, optional
        Of the ratio in the update and of the transition: eta = lambda' of Xu et al., epsilon of Fukumizu et al. Both
        regularizations are in units of the mean of k(x, x), delta in its square; the mean is one for radial kernels.
    num_basis, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.ridge.factorize`.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.embeddings import KernelBayesFilter
    >>> rng = np.random.default_rng(0)
    >>> angle = 0.3 * np.arange(400)
    >>> states = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.05 * rng.normal(size=(400, 2))
    >>> observed = states + 0.3 * rng.normal(size=(400, 2))
    >>> fitted = KernelBayesFilter().fit(states[:300], observed[:300], rng=rng)
    >>> errors = fitted.filter(observed[300:]).mean() - states[300:]
    >>> bool((errors**2).mean() < 0.5 * ((observed[300:] - states[300:]) ** 2).mean())
    True
    """

    method: str = "importance"
    state_kernel: Any = None
    observed_kernel: Any = None
    regularization: float | None = None
    ratio_regularization: float | None = None
    num_basis: int = 300
    tolerance: float = 1e-4

    def __post_init__(self):
        if self.method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {self.method!r}.")
        given = self.given()._asdict()
        check_between(*given, high=np.inf, **given)

    def given(self) -> FilterSettings:
        """Return the given settings, None for those that are to be chosen."""
        scales = [k if k is None or np.isscalar(k) else 1.0 for k in (self.state_kernel, self.observed_kernel)]
        return FilterSettings(*scales, self.regularization, self.ratio_regularization)

    @one_blas_thread
    def fit(self, states, observations, *, rng=None) -> "FittedFilter":
        """Return the filter learned from a sequence of ``states`` (T, p) and ``observations`` (T, q), in order of time.

        ``rng`` is a seed or a numpy.random.Generator; each candidate's basis points are drawn by a copy of it.
        """
        states, observations = as_points(states, "states"), as_points(observations, "observations")
        check_pairs(states=states, observations=observations)
        if len(states) < 10:
            raise ValueError(f"a filter needs states and observations of at least ten times, got {len(states)}.")
        rng = np.random.default_rng(rng)
        settings = self.given()
        if None in settings:
            settings = self._choose(states, observations, rng)
        factors = self._factors(states, observations, settings[:2], rng)
        return self._learn(states, factors, settings)

    def _choose(self, states, observations, rng):
        """Return the best settings of the grid, by their errors on the end of the sequence."""
        cut = len(states) - min(_MAX_VALIDATION, len(states) // 3)
        grid = _GRID if self.method == "importance" else _GRID._replace(regularization=_ORIGINAL_REGULARIZATIONS)
        grid = FilterSettings(*(some if one is None else (one,) for some, one in zip(grid, self.given(), strict=True)))
        spread = np.maximum(states.var(axis=0), 1e-300)
        factors = cache(lambda scales: self._factors(states[:cut], observations[:cut], scales, rng))

        @cache
        def errors(settings):
            fitted = self._learn(states[:cut], factors(settings[:2]), settings)
            return ((fitted.filter(observations[cut:]).mean() - states[cut:]) ** 2).mean(axis=0)

        # Scales, then regularizations, each twice: the full grid costs three times as much and is hardly better.
        best = FilterSettings(*(values[len(values) // 2] for values in grid))
        for names in (("state_scale", "observed_scale"), ("regularization", "ratio_regularization")) * 2:
            values = itertools.product(*(getattr(grid, name) for name in names))
            candidates = [best._replace(**dict(zip(names, pair, strict=True))) for pair in values]
            best = min(candidates, key=lambda settings: (errors(settings) / spread).sum())
        return best

    def _factors(self, states, observations, scales, rng):
        """Return the kernels of states and of observations, each followed by its factor."""
        rng, out = copy.deepcopy(rng), []
        given = (self.state_kernel, states), (self.observed_kernel, observations)
        for (kernel, points), scale in zip(given, scales, strict=True):
            if kernel is None or np.isscalar(kernel):
                kernel = Gaussian(scale * median_scales(points, rng))
            kernel = resolved(kernel, points, rng)
            out += [kernel, factorize(kernel, points, self.num_basis, self.tolerance, rng)]
        return out

    def _learn(self, states, factors, settings):
        state_kernel, state_factor, _, observed_factor = factors
        dynamics = Dynamics.of(state_factor.features, settings.ratio_regularization)
        return FittedFilter(states, state_kernel, observed_factor, dynamics, self.method, settings)


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The learned dynamics: ratio and next state for any distribution of states, in features.

    The ratio is r(z_i) = n f_i' (F'F + n eta I)^-1 m, m the mean features of any distribution of states.
    """

    features: np.ndarray  # (T, r), of the training states, in the order of time
    ratio_rows: np.ndarray  # (T, r), times m: the ratio
    forward_rows: np.ndarray  # (T - 1, r), times mean features of a state: weights of the next on states 2 to T
    transition: np.ndarray  # (r, r), times mean features of a state: those of the next

    @classmethod
    def of(cls, features: np.ndarray, ridge: float) -> "Dynamics":
        """Learn from the states' ``features`` (T, r) in the order of time."""
        ridge = ridge * _mean_square(features)

        def rows_of(some):
            return np.linalg.solve(some.T @ some + len(some) * ridge * np.eye(some.shape[1]), some.T).T

        forward_rows = rows_of(features[:-1])
        return cls(features, len(features) * rows_of(features), forward_rows, features[1:].T @ forward_rows)

    def ahead(self, weights: np.ndarray) -> np.ndarray:
        """Return the mean features (r,) of the next state, for weights (T,) of this one."""
        return self.transition @ (self.features.T @ weights)


@dataclass(frozen=True, eq=False)
class FittedFilter:
    """A learned state-space model."""

    states: np.ndarray  #: (T, p), of the training sequence
    state_kernel: Any
    factor: GramFactor  #: features of observations
    dynamics: Dynamics
    method: str  #: "importance" or "original"
    settings: FilterSettings  #: the four numbers in use

    @one_blas_thread
    def start(self, weights=None) -> FilterState:
        """Return the state before any observation: ``weights`` (T,) on the training states, equal by default."""
        weights = as_weights(weights, len(self.states), signed=True)
        return FilterState(weights, self.dynamics.features.T @ weights)

    @one_blas_thread
    def update(self, state: FilterState, observation) -> FilterState:
        """Return the state after one more ``observation`` (q,). O(T r^2)."""
        row = as_points(np.reshape(observation, (1, -1)), "observation")
        return self._step(state, self.factor.extend(row)[0])

    def _step(self, state, query):
        weights = self._updated(self.dynamics.ratio_rows @ state.predicted, query)
        return FilterState(weights, self.dynamics.ahead(weights))

    def _updated(self, ratio, query):
        """Return weights (T,) of sum one, given the prior as a ratio (T,) and the features (r,) of an observation."""
        features, size, unit = self.factor.features, len(ratio), _mean_square(self.factor.features)
        if self.method == "importance":
            ratio = np.maximum(0.0, ratio)
            system = (features * ratio[:, None]).T @ features
            system.flat[:: len(system) + 1] += size * self.settings.regularization * unit
            weights = ratio * (features @ jittered_solve(system, query))
        else:
            ratio = ratio / size  # sums to about one, so that delta does not depend on T
            delta = self.settings.regularization * unit**2
            [weights] = SignedRule.of(features, ratio).coefficients(query[None], delta)
        for candidate in (weights, np.maximum(ratio, 0.0)):
            total = candidate.sum()
            if total > 0.0:
                return candidate / total
            # The observation is far from everything predicted: the prediction is kept without an update.
        return np.full(size, 1.0 / size)

    @one_blas_thread
    def filter(self, observations, initial=None) -> KernelMean:
        """Return the distributions of states given the ``observations`` (S, q) up to each time; the first axis is time.

        ``initial`` (T,) are weights of the first state's distribution on the training states; equal by default.
        """
        state, weights = self.start(initial), []
        for query in self.factor.extend(as_points(observations, "observations")):
            state = self._step(state, query)
            weights.append(state.weights)
        return KernelMean(self.states, weights, self.state_kernel)

    @one_blas_thread
    def predict(self, filtered: KernelMean, steps: int = 1) -> KernelMean:
        """Return the distributions of the states ``steps`` times after each time of ``filtered``."""
        check_whole(steps=steps)
        weights = np.atleast_2d(filtered.weights)
        for _ in range(steps):
            ahead = np.zeros_like(weights)
            ahead[:, 1:] = (weights @ self.dynamics.features) @ self.dynamics.forward_rows.T
            totals = ahead.sum(axis=1, keepdims=True)
            weights = ahead / np.where(totals > 0.0, totals, 1.0)
        return KernelMean(self.states, weights.reshape(filtered.weights.shape), self.state_kernel)

    @one_blas_thread
    def smooth(self, filtered: KernelMean, observations) -> KernelMean:
        """Return the distributions of the states given all observations: fixed-interval smoothing.

        A second filter learns the training sequence backwards in time and runs backwards over the ``observations`` (S,
        q) that ``filtered`` came from. At each time the ratios of two predictions of the state, from earlier and from
        later observations, are multiplied: the product is the prior for the observation of that time. This assumes that
        the training sequence is stationary, and that the first state has the stationary distribution. O(T r^2) a step.
        """
        queries = self.factor.extend(as_points(observations, "observations"))
        weights = np.atleast_2d(filtered.weights)
        if len(queries) != len(weights):
            raise ValueError(f"filtered has {len(weights)} rows, observations {len(queries)}: use those it came from.")
        dynamics = Dynamics.of(self.dynamics.features[::-1], self.settings.ratio_regularization)
        backward = replace(self, dynamics=dynamics, factor=self.factor._replace(features=self.factor.features[::-1]))
        smoothed = np.array(weights)
        state = backward._step(FilterState(None, dynamics.features.mean(axis=0)), queries[-1])
        for t in range(len(weights) - 2, -1, -1):
            ratio = np.maximum(0.0, dynamics.ratio_rows @ state.predicted)[::-1]
            if t > 0:
                ratio = ratio * np.maximum(0.0, self.dynamics.ratio_rows @ self.dynamics.ahead(weights[t - 1]))
            if ratio.sum() > 0.0:
                smoothed[t] = self._updated(ratio * (len(ratio) / ratio.sum()), queries[t])
            state = backward._step(state, queries[t])
        return KernelMean(self.states, smoothed, self.state_kernel)


def _mean_square(features):
    """Return the mean of k(x, x) over the points."""
    return float(np.einsum("ij,ij->", features, features) / len(features))
