"""A likelihood learned from simulations: the density of summaries given parameters, with its gradient."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points, as_weights, check_magnitude, check_whole
from pymc_kernel.likelihood_free.learned_likelihood.chance import Chance, learn_chance
from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_maps
from pymc_kernel.likelihood_free.learned_likelihood.model import ConditionalDensity
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed, SummaryMap
from pymc_kernel.likelihood_free.learned_likelihood.training import Data, Plan, learn, learn_by_plan
from pymc_kernel.parallel import one_blas_thread

FEWEST = 20  # simulations needed to learn from, and in each round if the number of rounds is not given
_MOST_FOR_PLAN = 12_000  # simulations by which choices are made; the density itself is learned from all
_MOST_KNOTS = 120  # of all parameters together
_MOST_ENTRIES = 15_000_000  # of the matrix of joint bumps, so that it takes some 200 MB at most
_NUM_DRAWS = 200  # at each held-out simulation; a share of 2.5 % of them has a standard error of 1.1 %
_MAX_KEPT_BACK = 1000  # held-out simulations that are compared with draws
_FOR_PLACE = 2000  # examples that a fit keeps; least number of draws behind a predictive probability


@dataclass(frozen=True, eq=False)
class FittedLikelihood:
    """The learned density p(summaries | parameters).

    Summaries that the simulations show to be impossible have log density minus infinity and gradient zero:
    another value in a column that was constant, a fraction where all were whole numbers, a negative number where a
    logarithm or a square root was taken. Columns of whole numbers, or of multiples of one step such as proportions of
    20, have probabilities, all others densities.

    Attributes
    ----------
    summaries : SummaryMap
        The transform of the summaries before the regression.
    density : ConditionalDensity
        Of the transformed summaries: the estimate, and draws around it by its uncertainty.
    examples : tuple of ndarray, (k, d) and (k, q)
        Parameters and transformed summaries of some simulations: where the density was learned.
    success : Chance or None
        The probability of not failing, given the parameters; a factor of the density, since the data were observed.
        None where nothing failed.
    held_out : ndarray (m,) or None
        For each held-out simulation, the probability of a smaller density than its own, by a fit to the others alone;
        uniform on (0, 1) if the fit is right.
    plan : Plan or None
        The choices that held-out simulations made.
    """

    summaries: SummaryMap
    density: ConditionalDensity
    examples: tuple[np.ndarray, np.ndarray]
    held_out: np.ndarray | None = None
    plan: Plan | None = None
    success: Chance | None = None

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return len(self.density.parameters.kinds)

    @property
    def num_summaries(self) -> int:
        """The number of summaries."""
        return len(self.summaries.constant)

    @property
    def num_replicates(self) -> int:
        """The number of draws of the density around its estimate."""
        return len(self.density.joined) - 1

    def replicate(self, number: int) -> "FittedLikelihood":
        """Return one of these draws in place of the estimate."""
        success = None if self.success is None else self.success.replicate(number)
        return replace(self, density=self.density.take(number + 1), success=success)

    @one_blas_thread
    def log_density(self, parameters, observed) -> np.ndarray:
        """Return log densities (m,) of ``observed`` (q,), or of its rows (m, q), at parameters (m, d)."""
        return self.given(observed).evaluate(parameters, False, self.density.take(0))[0][0]

    @one_blas_thread
    def log_density_and_gradient(self, parameters, observed) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (m,) and their gradients (m, d) by the parameters."""
        [density], [slopes] = self.given(observed).evaluate(parameters, True, self.density.take(0))
        return density, slopes

    def given(self, observed) -> "LikelihoodOfData":
        """Return the likelihood of ``observed`` (q,) or (m, q), a function of the parameters alone."""
        return LikelihoodOfData(self, *self._observed(observed))

    @one_blas_thread
    def log_densities(self, parameters, observed) -> np.ndarray:
        """Return log densities (k, m) of each row of ``observed`` (k, q) at each of the parameters (m, d)."""
        parameters, (values, outside) = self._parameters(parameters), self._observed(observed)
        with np.errstate(over="ignore", invalid="ignore"):
            density = self.density.log_densities(parameters, values)
        if self.success is not None:
            density = density + self.success.log_probability(parameters)
        return np.where(outside[:, None] | ~np.isfinite(density), -np.inf, density)

    @one_blas_thread
    def sample(self, parameters, rng: np.random.Generator) -> np.ndarray:
        """Return summaries (m, q), one draw for each of the parameters (m, d), of simulations that do not fail."""
        return self.summaries.inverse(self.density.sample(self._parameters(parameters), rng))

    @one_blas_thread
    def place_of(self, observed, parameters, rng: np.random.Generator) -> float:
        """Return the probability of a smaller density than that of ``observed`` (q,), given ``parameters`` (m, d).

        With draws from the posterior it is a posterior predictive check; with the parameters that were simulated it
        says whether anything like the observation was simulated at all. Small numbers mean that it is an outlier.
        """
        parameters = self._parameters(parameters)
        repeated = np.tile(parameters, (max(1, -(-_FOR_PLACE // len(parameters))), 1))
        draws = self.sample(repeated, rng)
        lower = self.log_density(repeated, draws) < self.log_density(repeated, observed)
        return float((lower.sum() + 0.5) / (len(draws) + 1.0))

    def _parameters(self, parameters):
        return as_points(parameters, "parameters", num_dims=self.num_parameters)

    def _observed(self, observed):
        """Return transformed summaries of ``observed`` (q,) or (k, q), and which of the rows (k,) are impossible."""
        observed, q = as_numbers(observed, "observed"), self.num_summaries
        rows = np.atleast_2d(observed)
        if rows.ndim != 2 or rows.shape[1] != q:
            raise ValueError(f"observed must have shape ({q},) or (k, {q}), got {observed.shape}.")
        whole = np.flatnonzero(self.summaries.kept)[self.summaries.whole & (self.summaries.step == 1.0)]
        outside = ~self.summaries.is_possible(rows)
        outside |= (rows[:, whole] != np.round(rows[:, whole])).any(axis=1)
        values = self.summaries.observed(rows)
        outside |= ~np.isfinite(values.values).all(axis=1)
        return Observed(*[np.where(outside[:, None], 0.0, part) for part in values]), outside


class Averaged(NamedTuple):
    """Log densities of rows; their sum is the log of the joint density of all rows, averaged over the replicates."""

    rows: np.ndarray  # (m,), by the estimate; the change of their sum by averaging is shared equally
    slopes: np.ndarray  # (m, d), gradients of the rows by the estimate
    joint_slopes: np.ndarray  # (m, d), gradients of the sum


@dataclass(frozen=True, eq=False)
class LikelihoodOfData:
    """A learned likelihood of given data: ``values`` has one row, or one for each row of the parameters.

    ``outside`` (k,) marks the rows that are impossible for all parameters.
    """

    learned: FittedLikelihood
    values: Observed
    outside: np.ndarray

    @one_blas_thread
    def averaged(self, parameters, gradient: bool = False) -> Averaged:
        """Return the density of all rows together at parameters (m, d), averaged over the replicates.

        Errors of a learned density add up over rows. The product of all rows, averaged over the replicates, is their
        marginal likelihood: posteriors are wider by the uncertainty that the simulations leave.
        """
        found, slopes = self.evaluate(parameters, gradient, self.learned.density)
        if len(found) == 1:
            return Averaged(found[0], slopes[0], slopes[0])
        totals = found[1:].sum(axis=1)
        largest = totals.max()
        shares = np.exp(totals - largest) if np.isfinite(largest) else np.zeros(len(totals))
        with np.errstate(divide="ignore", invalid="ignore"):
            joint = largest + np.log(shares.mean())
            rows = found[0] + (joint - found[0].sum()) / found.shape[1]
        rows = np.where(np.isnan(rows), -np.inf, rows)
        return Averaged(rows, slopes[0], np.einsum("r,rmd->md", shares / max(shares.sum(), 1.0), slopes[1:]))

    def evaluate(self, parameters, gradient: bool, density: ConditionalDensity) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (r, m) and gradients (r, m, d) by the estimate, and by r - 1 replicates."""
        parameters = self.learned._parameters(parameters)
        if len(self.outside) not in (1, len(parameters)):
            raise ValueError(f"observed must have one row, or one row for each of {len(parameters)} parameters.")
        with np.errstate(over="ignore", invalid="ignore"):  # samplers ask at positions that overflow, too
            found, slopes = density.evaluate(parameters, self.values, gradient)
        if self.learned.success is not None:
            log_probabilities, own_slopes = self.learned.success.evaluate(parameters, gradient, len(found))
            found, slopes = found + log_probabilities, slopes + own_slopes
        outside = self.outside | ~np.isfinite(found) | ~np.isfinite(slopes).all(axis=2)
        return np.where(outside, -np.inf, found), np.where(outside[..., None], 0.0, slopes)


@dataclass(frozen=True)
class LearnedLikelihood:
    """Settings of a likelihood learned by kernel regression.

    Summaries are transformed (logarithm, square root, asinh or none, by leave-one-out score), then mean, spread and
    correlations of each with those before it are regressed on the parameters: linear, square and product features,
    bumps in one parameter and in all. Each block of features has a prior variance of its own, found by the evidence,
    and is left out where the evidence does not favor it; so a linear simulator is learned as a linear one. Residuals
    follow a mixture of normals. At the end all weights are improved together, as long as the density of held-out
    simulations rises. For n simulations, p features and q summaries O(q n p^2 + q p^3) time, O(n p) memory. The density
    is learned well where simulations are: the fit does not depend on their distribution, so they may be added where
    they are needed. S. N. Wood, "Statistical inference for noisy nonlinear ecological dynamic systems" (2010), for
    normal summaries; D. MacKay, "Bayesian interpolation" (1992), for the evidence of precisions.

    Parameters
    ----------
    num_centers : int
        Joint bumps, at most; time grows with its square, and its third power from 10,000 simulations on.
    num_knots : int
        Bumps in each single parameter, at most.
    num_replicates : int
        Draws of the density around its estimate, which show its uncertainty.
    """

    num_centers: int = 300
    num_knots: int = 20
    num_replicates: int = 8

    def __post_init__(self):
        check_whole(num_centers=self.num_centers, num_knots=self.num_knots)

    @one_blas_thread
    def fit(self, parameters, summaries, rng=None, *, weights=None) -> FittedLikelihood:
        """Return the density learned from simulations.

        Raises ``ValueError`` for shapes that do not fit, or fewer than 20 simulations, at different parameters, that
        did not fail.

        Parameters
        ----------
        parameters : array_like (n, d)
        summaries : array_like (n, q)
            Row i was simulated at row i of ``parameters``. Rows with NaN or infinite numbers are left out and counted.
        rng : numpy.random.Generator or int, optional
            Chooses held-out simulations and centers of bumps, among others.
        weights : array_like (n,), optional
            Of the simulations, not negative; equal by default.
        """
        rng = np.random.default_rng(0 if rng is None else rng)
        parameters, summaries, weights = _checked(parameters, summaries, weights)
        places_of_all, whole, weights_of_all = parameters, np.isfinite(summaries).all(axis=1), weights
        parameters, summaries, weights = _usable(parameters, summaries, weights, whole)
        rough = SummaryMap.of(summaries)
        if not rough.kept.any():
            raise ValueError("summaries have the same values in all simulations, so that nothing can be learned.")
        spread = _dequantized(summaries, rough, rng)
        places, transform = choose_maps(parameters, summaries, spread, rng)
        data = _data(transform, places, parameters, summaries, weights, rng, spread)
        order = rng.permutation(len(parameters))
        back, rest = np.split(order[:_MOST_FOR_PLAN], [min(len(order), _MOST_FOR_PLAN) // 5])
        learned, plan = learn(places, data.take(rest), data.take(back), rng, self._sizes)
        some = order[:_FOR_PLACE]
        examples = parameters[some], transform(summaries[some])
        first = FittedLikelihood(transform, learned, examples)
        held_out = check_held_out(first, parameters[back], summaries[back], rng)
        density = learn_by_plan(places, data, plan, rng, self._sizes, self.num_replicates)
        used = weights_of_all > 0.0
        success = self.fit_chance(places_of_all[used], whole[used], rng, weights=weights_of_all[used])
        return FittedLikelihood(transform, density, examples, held_out, plan, success)

    def fit_chance(self, parameters, happened, rng, *, weights=None, rough=None) -> Chance | None:
        """Return the probability of an event (n,) given parameters (n, d); None if it always or never happened.

        ``rough`` (n,) are log probabilities from elsewhere, which stay where the cases do not tell.
        """
        happened = np.asarray(happened, dtype=bool)
        if happened.all() or not happened.any():
            return None
        return learn_chance(parameters, happened, rng, self._sizes, self.num_replicates, weights, rough)

    def fit_folds(self, fit: FittedLikelihood, parameters, summaries, rng, num_folds: int = 5):
        """Yield pairs of rows (k,) and the density learned from all others, by the choices that ``fit`` made.

        Every row is in one of the folds. Failed simulations must have been left out.
        """
        parameters, summaries, weights = _checked(parameters, summaries, None)
        data = _data(fit.summaries, fit.density.parameters, parameters, summaries, weights, rng)
        for rows in np.array_split(rng.permutation(len(parameters)), num_folds):
            rest = np.setdiff1d(np.arange(len(parameters)), rows)
            with one_blas_thread:  # a decorator of a generator would end before the first fold
                density = learn_by_plan(fit.density.parameters, data.take(rest), fit.plan, rng, self._sizes, 0)
            yield rows, FittedLikelihood(fit.summaries, density, fit.examples)

    def _sizes(self, n, d):
        """Return the number of bumps in each parameter, and of joint bumps."""
        num_knots = min(max(n // 60, 4), max(_MOST_KNOTS // d, 6), self.num_knots)
        return num_knots, min(self.num_centers, 50 + n // 10, max(_MOST_ENTRIES // n, 50))


def check_held_out(fit: FittedLikelihood, parameters, summaries, rng) -> np.ndarray:
    """Return probabilities (m,) of smaller densities than those of ``summaries`` (m, q) given ``parameters`` (m, d)."""
    if len(parameters) > _MAX_KEPT_BACK:
        some = rng.choice(len(parameters), _MAX_KEPT_BACK, replace=False)
        parameters, summaries = parameters[some], summaries[some]
    scores = fit.log_density(parameters, summaries)
    lower = rng.random(len(parameters))
    for _ in range(_NUM_DRAWS):
        lower += fit.log_density(parameters, fit.sample(parameters, rng)) < scores
    return lower / (_NUM_DRAWS + 1)


def _data(transform, places, parameters, summaries, weights, rng, spread=None) -> Data:
    """Return the data of a fit; ``spread`` are the summaries with whole numbers spread over their intervals."""
    spread = _dequantized(summaries, transform, rng) if spread is None else spread
    return Data(places(parameters), transform.observed(spread, cells=False), transform.observed(summaries), weights)


def _checked(parameters, summaries, weights):
    """Return the arrays if their shapes fit, else raise."""
    parameters = as_points(parameters, "parameters")
    summaries = as_points(summaries, "summaries", finite=False)
    n = len(parameters)
    if len(summaries) != n:
        raise ValueError(f"summaries must have {n} rows, one for each of the parameters, got {len(summaries)}.")
    return parameters, summaries, n * as_weights(weights, n)


def _usable(parameters, summaries, weights, whole):
    """Return arrays without failed simulations, and weights of mean one."""
    used = whole & (weights > 0.0)
    if used.sum() < FEWEST:
        raise ValueError(f"only {used.sum()} of {len(used)} summaries are finite, with a weight; {FEWEST} are needed.")
    parameters, summaries, weights = parameters[used], summaries[used], weights[used]
    distinct = len(np.unique(parameters, axis=0))
    if distinct < FEWEST:
        raise ValueError(f"the simulations were made at {distinct} different parameters; at least {FEWEST} are needed.")
    check_magnitude(parameters, "parameters")
    check_magnitude(summaries, "summaries")
    return parameters, summaries, weights / weights.mean()


def _dequantized(summaries, transform: SummaryMap, rng):
    """Return summaries with whole numbers spread over the interval that is rounded to them."""
    out = summaries.copy()
    whole = np.flatnonzero(transform.kept)[transform.whole]
    out[:, whole] += rng.uniform(-0.5, 0.5, (len(out), len(whole))) * transform.step[transform.whole]
    return out
