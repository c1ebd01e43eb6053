"""A likelihood learned from simulations: the density of summaries given parameters, with its gradient.

Imports NumPy and siblings only.
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points, check_magnitude
from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_parameter_map, choose_summary_map
from pymc_kernel.likelihood_free.learned_likelihood.diagnostics import HeldOut, Place, check_held_out, place_among
from pymc_kernel.likelihood_free.learned_likelihood.model import ConditionalDensity
from pymc_kernel.likelihood_free.learned_likelihood.polish import Data
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed, SummaryMap
from pymc_kernel.likelihood_free.learned_likelihood.training import Plan, learn, learn_by_plan
from pymc_kernel.parallel import one_blas_thread

__all__ = ["FittedLikelihood", "LearnedLikelihood"]

_FEWEST = 20
_MOST_FOR_PLAN = 12_000  # simulations by which choices are made; all of them teach the density itself
_MOST_KNOTS = 120  # of all parameters together
_MOST_ENTRIES = 15_000_000  # of the matrix of joint bumps, so that it takes some 200 MB at most


@dataclass(frozen=True, eq=False)
class FittedLikelihood:
    """The learned density p(summaries | parameters).

    Summaries that cannot be, as far as the simulations say, have the log density minus infinity and the gradient zero:
    another value in a column that was constant, a fraction where all were whole numbers, a negative number where a
    logarithm or a square root was taken. Columns of whole numbers have probabilities, all others densities.

    Attributes
    ----------
    summaries : SummaryMap
        What was done to the summaries before the regression.
    density : ConditionalDensity
        Of the transformed summaries.
    num_dropped : int
        Simulations left out since they failed: rows with NaN or infinite numbers. The density is that of summaries
        of simulations that do not fail. Where failing depends on the parameters, the posterior still lacks the
        probability of not failing as a factor.
    held_out : HeldOut or None
        How simulations that were kept back lie in what was learned from the others.
    plan : Plan or None
        What the simulations that were kept back chose.
    replicates : tuple of ConditionalDensity
        Draws of what the density might as well be, by the simulations that there were.
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
        """Return where ``observed`` (q,) lies in the learned distributions given ``parameters`` (m, d).

        With draws from the posterior it is a posterior predictive check of each summary, and of all together; with
        the parameters that were simulated it says whether anything like the observation was simulated at all.
        """
        observed = as_numbers(observed, "observed")
        if observed.shape != self.summaries.kept.shape:
            raise ValueError(f"observed must have shape {self.summaries.kept.shape}, got {observed.shape}.")
        return place_among(self, observed, self._parameters(parameters), rng)

    def _parameters(self, parameters):
        parameters = as_points(parameters, "parameters")
        if parameters.shape[1] != self.num_parameters:
            raise ValueError(f"parameters must have {self.num_parameters} columns, got {parameters.shape[1]}.")
        return parameters

    def _evaluate(self, parameters, observed, gradient):
        parameters, observed = self._parameters(parameters), as_numbers(observed, "observed")
        q = len(self.summaries.kept)
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
        with np.errstate(over="ignore", invalid="ignore"):  # samplers ask beyond the largest numbers, too
            result = self.density.log_density(parameters, values, gradient)
        density, slope = result if gradient else (result, np.zeros(parameters.shape))
        outside = np.broadcast_to(outside, density.shape) | ~np.isfinite(density) | ~np.isfinite(slope).all(axis=1)
        return np.where(outside, -np.inf, density), np.where(outside[:, None], 0.0, slope)


@dataclass(frozen=True)
class LearnedLikelihood:
    """Settings of a likelihood learned by kernel regression.

    Summaries are transformed (logarithm, square root, asinh or none, by leave-one-out score), then mean, spread and
    correlations of each with those before it are regressed on the parameters: linear, square and product features,
    bumps in one parameter and in all. Each block of features has a prior variance of its own, found by the evidence,
    and is left out where the evidence does not speak for it; so a linear simulator is learned as a linear one.
    Residuals have a mixture of normals. At the end all weights are improved together, as far as simulations that were
    kept back have a higher density for it.

    Parameters
    ----------
    num_centers : int
        Of the joint bumps, at most; time grows with its square, and its third power from 10,000 simulations on.
    num_knots : int
        Bumps in each single parameter, at most.
    num_replicates : int
        Draws of the density around its estimate, which say how well it is known.

    Notes
    -----
    For n simulations, p features and q summaries O(q n p^2 + q p^3) time, O(n p) memory. The density is learned well
    where simulations are: the fit does not depend on their distribution, so they may be added where they are needed.

    S. N. Wood, "Statistical inference for noisy nonlinear ecological dynamic systems" (2010), for normal summaries;
    D. MacKay, "Bayesian interpolation" (1992), for the evidence of precisions.
    """

    num_centers: int = 300
    num_knots: int = 20
    num_replicates: int = 8

    def __post_init__(self):
        for name in ("num_centers", "num_knots"):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")

    @one_blas_thread
    def fit(self, parameters, summaries, rng=None, *, weights=None) -> FittedLikelihood:
        """Return the density learned from simulations.

        Parameters
        ----------
        parameters : array_like (n, d)
        summaries : array_like (n, q)
            Row i was simulated at row i of ``parameters``. Rows with NaN or infinite numbers are left out and counted.
        rng : numpy.random.Generator or int, optional
            Draws which simulations are kept back, and centers of bumps.
        weights : array_like (n,), optional
            Of the simulations, not negative; equal by default.

        Raises
        ------
        ValueError
            For shapes that do not fit, or fewer than 20 simulations that did not fail.
        """
        rng = np.random.default_rng(0 if rng is None else rng)
        parameters, summaries, weights, num_dropped = _usable(parameters, summaries, weights)
        rough = SummaryMap.of(summaries)
        if not rough.kept.any():
            raise ValueError("summaries have the same values in all simulations, so that nothing can be learned.")
        places = choose_parameter_map(parameters, rough(summaries), rng)
        spread = _dequantized(summaries, rough, rng)
        transform = choose_summary_map(summaries, spread, places, parameters, rng)
        observed = transform.observed(spread, cells=False), transform.observed(summaries)
        data = Data(places(parameters), *observed, weights)
        order = rng.permutation(len(parameters))
        back, rest = np.split(order[:_MOST_FOR_PLAN], [min(len(order), _MOST_FOR_PLAN) // 5])
        learned, plan, staged = learn(places, data.take(rest), data.take(back), rng, self._sizes)
        held_out = check_held_out(FittedLikelihood(transform, learned), parameters[back], summaries[back], rng)
        density, replicates = learn_by_plan(places, data, plan, staged, rng, self._sizes, self.num_replicates)
        return FittedLikelihood(transform, density, num_dropped, held_out, plan, replicates)

    def _sizes(self, n, d):
        """Return how many bumps in each parameter, and how many in all."""
        num_knots = min(max(n // 60, 4), max(_MOST_KNOTS // d, 6), self.num_knots)
        return num_knots, min(self.num_centers, 50 + n // 10, max(_MOST_ENTRIES // n, 50))


def _usable(parameters, summaries, weights):
    """Return checked arrays without failed simulations, weights of mean one, and how many failed."""
    parameters = as_points(parameters, "parameters")
    summaries = as_points(summaries, "summaries", finite=False)
    n = len(parameters)
    if len(summaries) != n:
        raise ValueError(f"summaries must have {n} rows, one for each of the parameters, got {len(summaries)}.")
    weights = np.ones(n) if weights is None else as_numbers(weights, "weights")
    if weights.shape != (n,) or not (np.isfinite(weights) & (weights >= 0.0)).all():
        raise ValueError(f"weights must have shape ({n},) and be finite and not negative.")
    whole = np.isfinite(summaries).all(axis=1)
    used = whole & (weights > 0.0)
    if used.sum() < _FEWEST:
        raise ValueError(
            f"only {used.sum()} of {n} simulations have finite summaries and a weight; at least {_FEWEST} are needed."
        )
    parameters, summaries, weights = parameters[used], summaries[used], weights[used]
    check_magnitude(parameters, "parameters")
    check_magnitude(summaries, "summaries")
    return parameters, summaries, weights / weights.mean(), int((~whole).sum())


def _dequantized(summaries, transform: SummaryMap, rng):
    """Return summaries with whole numbers spread over the interval that is rounded to them."""
    out = summaries.copy()
    whole = np.flatnonzero(transform.kept)[transform.whole]
    out[:, whole] += rng.uniform(-0.5, 0.5, (len(out), len(whole)))
    return out
