"""A likelihood learned from simulations: the density of summaries given parameters, with its gradient.

Imports NumPy and siblings only.
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points
from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_parameter_map, choose_summary_map
from pymc_kernel.likelihood_free.learned_likelihood.diagnostics import HeldOut, Place, check_held_out, place_among
from pymc_kernel.likelihood_free.learned_likelihood.model import ConditionalDensity
from pymc_kernel.likelihood_free.learned_likelihood.polish import Data
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed, SummaryMap
from pymc_kernel.likelihood_free.learned_likelihood.training import Plan, learn, learn_by_plan
from pymc_kernel.parallel import one_blas_thread

__all__ = ["FittedLikelihood", "LearnedLikelihood"]


@dataclass(frozen=True, eq=False)
class FittedLikelihood:
    """The learned density p(summaries | parameters).

    Attributes
    ----------
    summaries : SummaryMap
        What was done to the summaries before the regression.
    density : ConditionalDensity
        Of the transformed summaries.
    num_dropped : int
        Simulations left out since they failed: rows with NaN or infinite numbers.
    held_out : HeldOut or None
        How simulations that were kept back lie in what was learned from the others.
    """

    summaries: SummaryMap
    density: ConditionalDensity
    num_dropped: int = 0
    held_out: HeldOut | None = None
    plan: Plan | None = None
    replicates: tuple[ConditionalDensity, ...] = ()

    @property
    def num_parameters(self) -> int:
        """How many parameters there are."""
        return len(self.density.parameters.kinds)

    @property
    def num_summaries(self) -> int:
        """How many summaries there are."""
        return len(self.summaries.constant)

    def replicate(self, number: int) -> "FittedLikelihood":
        """Return one of the ``replicates`` in place of the estimate."""
        return replace(self, density=self.replicates[number], replicates=())

    @one_blas_thread
    def log_density(self, parameters, observed) -> np.ndarray:
        """Return log densities (m,) of ``observed`` (q,), or of its rows (m, q), at parameters (m, d)."""
        return self._evaluate(parameters, observed, False)[0]

    @one_blas_thread
    def log_density_and_gradient(self, parameters, observed) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (m,) and their gradients (m, d) by the parameters."""
        return self._evaluate(parameters, observed, True)

    @one_blas_thread
    def sample(self, parameters, rng: np.random.Generator) -> np.ndarray:
        """Return summaries (m, q), one draw for each of the parameters (m, d)."""
        return self.summaries.inverse(self.density.sample(self._parameters(parameters), rng))

    @one_blas_thread
    def place_of(self, observed, parameters, rng: np.random.Generator) -> Place:
        """Return where ``observed`` (q,) lies in the learned distribution given ``parameters`` (m, d), such as posterior draws."""
        return place_among(self, as_numbers(observed, "observed"), self._parameters(parameters), rng)

    def _parameters(self, parameters):
        parameters = as_points(parameters, "parameters")
        if parameters.shape[1] != self.num_parameters:
            raise ValueError(f"parameters must have {self.num_parameters} columns, got {parameters.shape[1]}.")
        return parameters

    def _evaluate(self, parameters, observed, gradient):
        parameters, observed = self._parameters(parameters), as_numbers(observed, "observed")
        q = self.num_summaries
        if observed.shape not in ((q,), (len(parameters), q)):
            raise ValueError(f"observed must have shape ({q},) or ({len(parameters)}, {q}), got {observed.shape}.")
        rows = np.atleast_2d(observed)
        constant = self.summaries.constant[~self.summaries.kept]
        whole = np.flatnonzero(self.summaries.kept)[self.summaries.whole]
        outside = (rows[:, ~self.summaries.kept] != constant).any(axis=1)
        outside |= (rows[:, whole] != np.round(rows[:, whole])).any(axis=1)
        values = self.summaries.observed(rows)
        outside |= ~np.isfinite(values.values).all(axis=1)
        values = Observed(*[np.where(outside[:, None], 0.0, part) for part in values])
        values = Observed(*[np.broadcast_to(part, (len(parameters), part.shape[1])) for part in values])
        found = self.density.log_density(parameters, values, gradient)
        density, slope = found if gradient else (found, np.zeros(parameters.shape))
        outside = np.broadcast_to(outside, density.shape)
        return np.where(outside, -np.inf, density), np.where(outside[:, None], 0.0, slope)


@dataclass(frozen=True)
class LearnedLikelihood:
    """Settings of a likelihood learned by kernel regression.

    Parameters
    ----------
    num_centers : int
        Of the joint radial features, at most.
    num_knots : int
        Of the radial features in each single parameter.
    num_replicates : int
        Draws of the likelihood around its estimate, which say how well it is known.
    """

    num_centers: int = 300
    num_knots: int = 20
    num_replicates: int = 8

    @one_blas_thread
    def fit(self, parameters, summaries, rng=None, *, weights=None) -> FittedLikelihood:
        """Return the density learned from simulations.

        Parameters
        ----------
        parameters : array_like (n, d)
        summaries : array_like (n, q)
            Row i was simulated at row i of ``parameters``. Rows with NaN are left out and counted.
        rng : numpy.random.Generator, optional
        weights : array_like (n,), optional
            Of the simulations; equal by default.
        """
        rng = np.random.default_rng(0) if rng is None else rng
        parameters = as_points(parameters, "parameters")
        summaries = as_points(summaries, "summaries", finite=False)
        weights = np.ones(len(parameters)) if weights is None else as_numbers(weights, "weights")
        good = np.isfinite(summaries).all(axis=1) & (weights > 0.0)
        parameters, summaries, weights = parameters[good], summaries[good], weights[good]
        weights = weights / weights.mean()
        rough = SummaryMap.of(summaries)
        places = choose_parameter_map(parameters, rough(summaries), rng)
        spread = _dequantized(summaries, rough, rng)
        transform = choose_summary_map(summaries, spread, places, parameters, rng)
        observed = transform.observed(spread, cells=False), transform.observed(summaries)
        data = Data(places(parameters), *observed, weights)
        back = rng.permutation(len(parameters)) < max(len(parameters) // 5, 1)
        learned, plan, staged = learn(places, data, back, rng, self._sizes)
        held_out = check_held_out(FittedLikelihood(transform, learned), parameters[back], summaries[back], rng)
        density, replicates = learn_by_plan(places, data, plan, staged, rng, self._sizes, self.num_replicates)
        return FittedLikelihood(transform, density, int((~good).sum()), held_out, plan, replicates)

    def _sizes(self, n, d):
        """Return how many knots and how many centers."""
        return int(np.clip(n // 60, 4, self.num_knots)), min(self.num_centers, 50 + n // 10)


def _dequantized(summaries, transform: SummaryMap, rng):
    """Return summaries with whole numbers spread over the interval that is rounded to them."""
    out = summaries.copy()
    whole = np.flatnonzero(transform.kept)[transform.whole]
    out[:, whole] += rng.uniform(-0.5, 0.5, (len(out), len(whole)))
    return out
