"""Rounds of an emulated model: learn, draw by NUTS, evaluate draws, compare."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from pymc.pytensorf import compile as pymc_compile
from scipy.stats import chi2

from pymc_kernel.emulation import FittedOutputs, fit_outputs
from pymc_kernel.emulation.outputs import held_out_outputs
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.emulation.chains import Chains, autocorrelation_time, largest_rhat
from pymc_kernel.plugin.emulation.coarse import coarse_versions
from pymc_kernel.plugin.emulation.emulated_model import LearnedPart, model_with
from pymc_kernel.plugin.emulation.emulation import Emulation, Round, measured
from pymc_kernel.plugin.emulation.evaluated import Evaluated
from pymc_kernel.plugin.emulation.explorers import Explorers
from pymc_kernel.plugin.emulation.structure import Unknown
from pymc_kernel.plugin.model.interpreter import STABLE
from pymc_kernel.plugin.model.priors import initial_position
from pymc_kernel.plugin.model.scores import without_gradient
from pymc_kernel.plugin.model.unconstrained import split_positions, value_shapes
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.warn import warn_user

__all__ = ["Search"]

_NONE: Mapping = MappingProxyType({})
_CHAINS = 4
_UNCERTAIN, _CANDIDATES = 2, 200  # evaluations in a round where what is learned is least certain, of so many draws
_VERSIONS = 4  # of the outputs at a draw, by which its uncertainty is known within a third
_RARE = 1e-3  # of the draws of a normal distribution have a lower log density than a chain that is not lost
_POOR = 0.5  # distance from which on more than half of what is drawn has no place in the posterior
_FOLDS = 10  # of cross-validation
_TAIL = 0.05  # of the draws: places with a lower log density are not like them


class _GivenRows:
    """Outputs of a part that are given as numbers: rows (b, q)."""

    def __init__(self, num_rows, num_outputs, is_factor):
        self.is_factor = is_factor
        self.rows = pytensor.shared(np.ones((num_rows, num_outputs)), shape=(num_rows, num_outputs))

    def __call__(self, inputs):
        return self.rows


class Search:
    """Evaluations so far, what was learned of them, and chains on the emulated model."""

    def __init__(
        self, model: pm.Model, unknown: Unknown, tolerance: float, rng: np.random.Generator, coarse: Mapping = _NONE
    ):
        calls, parts = unknown.calls, unknown.parts
        self.model, self.unknown = model, unknown
        self.calls, self.parts, self.tolerance, self.rng = calls, parts, tolerance, rng
        self.learned = [LearnedPart(p, f"part{i}", *unknown.sizes(p)) for i, p in enumerate(parts)]
        self.coarse = coarse_versions(calls, coarse)
        self.emulated, inputs = model_with(model, calls, parts, self.learned, self.coarse)
        left = without_gradient(self.emulated, self.emulated.continuous_value_vars)
        if left:
            raise ValueError(
                f"besides its black boxes, this model has log density terms without gradient ({', '.join(left)}), "
                "which pk.emulate does not learn: use pk.sample_surrogate(). A prior whose logp calls a black box may "
                "be a pm.Potential of what the box returns."
            )
        given = [
            _GivenRows(len(p.functions), unknown.sizes(p)[1], learned.is_factor)
            for p, learned in zip(parts, self.learned, strict=True)
        ]
        self.given_rows = [g.rows for g in given]
        with_given, _ = model_with(model, calls, parts, given, self.coarse)
        settings = {"mode": STABLE, "on_unused_input": "ignore"}
        with with_given:
            self.density_given = pymc_compile(with_given.value_vars, with_given.logp(), **settings)
        with self.emulated:
            inputs = self.emulated.replace_rvs_by_values(inputs)
            self.inputs_of_parts = pymc_compile(self.emulated.value_vars, inputs, **settings)
        self.shapes, self.initial = value_shapes(model), initial_position(model)
        self.positions = np.empty((0, self.initial.size))
        self.evaluated: list[Evaluated] = []
        self.rough: list[dict] = []  # of each evaluation, outputs (b, q) of the cheap versions of calls
        self.chains = self.fits = self.draws = self.best = self.best_fits = self.best_draws = None
        self.rounds: list[Round] = []
        self.is_confirmed = False
        self.explorers: Explorers | None = None
        self.num_own, self.num_explored = 0, 0  # of a batch: draws of the posterior, and places of explorers
        self.is_chosen: list[bool] = []

    def run(self, prior, places: np.ndarray, size: int | None, most: int, evaluate, progressbar: bool) -> None:
        """Evaluate ``places`` (n, d) and learn in rounds of ``size``, until the search has ended or after ``most``.

        Without ``size`` a round has two evaluations for each coefficient of a linear function of the inputs, and two;
        of a model that is poor, one of each chain: most of its draws show the same fault.

        Parameters
        ----------
        prior : ModelPrior
        evaluate : Evaluations
            Of the true model.
        """
        with progress_bar("First places", most, progressbar) as advance:
            batch = places[:most]
            self.num_own = len(batch)
            while len(batch):
                vectors = evaluate(len(self.positions), batch, advance)
                self.add(batch, [self.unknown.true.read(v, x) for v, x in zip(vectors, batch, strict=True)])
                if self.best is not None:
                    advance(0, f"Distance {self.best.distance:.2f}")
                if self.has_ended:
                    break
                batch = self.propose(prior, size or (_CHAINS if self._is_poor else self.unknown.batch_size))
                self.num_own = len(batch)
                if self.chains is not None:
                    if self.explorers is None:
                        self.explorers = Explorers(self.chains, prior, self.rng)
                    with interrupts_wait.not_here():
                        explored = self.explorers.draw(self._best_places())
                    self.num_explored = len(explored)
                    batch = np.concatenate([batch, explored, self._most_uncertain()])
                batch = batch[: most - len(self.positions)]

    def add(self, batch: np.ndarray, evaluated: list[Evaluated]) -> None:
        """Take in what was evaluated; of fresh draws, measure the distance first."""
        if self.fits is not None:
            learned = np.array([self.chains.log_density(x) for x in batch])
            log_ratios = np.array([e.log_density for e in evaluated]) - learned
            explored = log_ratios[self.num_own :][: self.num_explored]
            if explored.size:
                self.explorers.set_power(explored)
            own = measured(log_ratios[: self.num_own])
            self.rounds.append(Round(len(self.positions), *own, self.held_out, self.rhat))
            # A round has few draws. The worse of two in a row is no luck, and is not chosen among many for being small.
            worse = max(self.rounds[-2:], key=lambda r: (not Chains.have_converged(r.rhat), r.distance))
            worse = worse._replace(distance=max(worse.distance, self.held_out))
            is_confirmed = len(self.rounds) > 1 and Chains.have_converged(worse.rhat)
            if self.best is None or (is_confirmed, -worse.distance) >= (self.is_confirmed, -self.best.distance):
                self.best, self.is_confirmed = worse, is_confirmed
                self.best_fits, self.best_draws = self.fits, self.draws
        # Beyond the explorers' places are those that were chosen because they cannot be predicted from others.
        self.is_chosen += [i >= self.num_own + self.num_explored for i in range(len(batch))]
        self.positions = np.concatenate([self.positions, batch])
        self.evaluated += evaluated
        self.rough += [{i: c.rows(e.inputs[i]) for i, c in self.coarse.items()} for e in evaluated]

    @property
    def has_ended(self) -> bool:
        """Whether the distance is known to be within the tolerance."""
        return self.best is not None and self.is_confirmed and self.best.distance < self.tolerance

    @property
    def _is_poor(self) -> bool:
        """Whether most draws of the emulated model have no place in the posterior, by the last round."""
        return not self.rounds or self.rounds[-1].distance > _POOR

    def propose(self, prior, size: int) -> np.ndarray:
        """Return the places (size, d) to evaluate next: draws of the posterior with all that was learned."""
        self.fits = self._fitted()
        if self.fits is None:
            return prior.draw(self.rng, size)
        self._renew(self.fits)
        with interrupts_wait.not_here():
            if self.chains is None:
                variances = np.maximum(prior.draw(self.rng, 100).var(axis=0), 1e-12)
                self.chains = Chains(self.emulated, self._best_places(), variances, self.rng)
            elif not (Chains.have_converged(self.rhat) and self.chains.have_density):
                self._begin_anew()
            if self.explorers is not None:
                self.chains.exchange(self.explorers.chains, self.rng)
            draws, self.rhat = self.chains.draw(is_short=self._is_poor)
            self.draws = draws
            self.held_out = self._held_out_distance() if Chains.have_converged(self.rhat) else 1.0
            if self.held_out < self.tolerance:
                draws, self.rhat = self._challenged(draws, prior)
                self.draws = draws
        each = -(-size // len(draws))
        kept = np.linspace(0, draws.shape[1], each + 1).astype(int)[1:] - 1
        return _flat(draws[:, kept].transpose(1, 0, 2))[:size]

    def _most_uncertain(self) -> np.ndarray:
        """Return the draws (_UNCERTAIN, d) whose log density is known least; none of a model that is poor.

        Of n places that were learned from, 2 / n of the next draws lie beyond the range of each input.
        """
        if self._is_poor:
            return np.empty((0, self.initial.size))
        draws = self.rng.permutation(_flat(self.draws))[:_CANDIDATES]
        return draws[np.argsort(-self._uncertainty(draws))[:_UNCERTAIN]]

    def _uncertainty(self, draws: np.ndarray) -> np.ndarray:
        """Return how far (n,) the log density at draws (n, d) may be off, by what is learned: a root mean square."""
        square = np.zeros(len(draws))
        for i, x in enumerate(draws):
            split = [p[0] for p in split_positions(self.emulated, x[None], self.shapes)]
            inputs, learned = self.inputs_of_parts(*split), self.chains.log_density(x)
            for _ in range(_VERSIONS):
                for shared, part, rows, (of_part, *_) in zip(
                    self.given_rows, self.parts, inputs, self.fits, strict=True
                ):
                    outputs = np.empty(shared.get_value(borrow=True).shape)
                    for function, fit in enumerate(of_part):
                        mine = part.functions == function
                        outputs[mine] = fit.random(rows[mine], self.rng)
                    shared.set_value(outputs)
                square[i] += (float(self.density_given(*split)) - learned) ** 2 / _VERSIONS
        return np.sqrt(np.where(np.isfinite(square), square, 0.0))

    def _best_places(self) -> np.ndarray:
        """Return the places (chains, d) with the largest true log density."""
        best = np.argsort(-self.log_densities)[:_CHAINS]
        return self.positions[best[np.isfinite(self.log_densities[best])]]

    def _begin_anew(self) -> None:
        """Let chains that are lost go on from the best places; others may be in modes of their own, or only slow.

        Lost in a mode that was invented or is far lower, or where an evaluation has failed since: the log density of a
        normal distribution is below its maximum by half a chi-squared variable.
        """
        best, places = self._best_places(), self.chains.places
        least = self.log_densities.max() - 0.5 * chi2.isf(_RARE, places.shape[1])
        lost = [c for c, x in enumerate(places) if not self.chains.log_density(x) >= least]
        for i, c in enumerate(lost):
            places[c] = best[i % len(best)]
        self.chains.go_to(places)

    def _challenged(self, draws: np.ndarray, prior) -> tuple[np.ndarray, float]:
        """Return draws and their R-hat, with those of other chains where these have ended elsewhere.

        A surrogate may have modes where nothing was evaluated, and the posterior modes that no chain is in. Chains that
        go on from round to round never see them. Those of ``pm.sample`` may, which begin around a draw (see ``result``)
        or, with initial values of the user, elsewhere; so may those that begin at draws of the prior. What is found
        there is evaluated next.
        """
        flat = _flat(draws)
        centers = [self.rng.choice(flat), self.initial, *prior.draw(self.rng, _CHAINS)]
        others, _ = self.chains.elsewhere(centers, np.maximum(flat.var(axis=0), 1e-12), self.rng).draw()
        count = min(draws.shape[1], others.shape[1])
        both = np.concatenate([draws[:, -count:], others[:, -count:]])
        rhat = largest_rhat(both)
        return (draws, rhat) if Chains.have_converged(rhat) else (both, rhat)

    def result(self, first_error) -> pm.Model:
        """Return the emulated model with the best of the fits."""
        if self.best is None:
            said = f" The first error: {first_error}" if first_error else ""
            raise ValueError(
                f"{len(self.evaluated)} evaluations are too few to learn from and to measure what was learned.{said}"
            )
        self._renew(self.best_fits)
        self._begin_at(self.positions[np.argmax(self.log_densities)])
        best = self.best
        self.emulated.emulation = Emulation(
            num_evaluations=len(self.evaluated),
            num_failed=self.num_failed,
            distance=best.distance,
            log_ratio_sd=best.log_ratio_sd,
            effective_share=best.effective_share,
            rhat=best.rhat,
            autocorrelation_time=autocorrelation_time(self.best_draws),
            rounds=pd.DataFrame(self.rounds),
            draws=_flat(self.best_draws),
            positions=self.positions,
            log_density=self.log_densities,
        )
        return self.emulated

    @property
    def log_densities(self) -> np.ndarray:
        """True log densities so far, (n,)."""
        return np.array([e.log_density for e in self.evaluated])

    @property
    def num_failed(self) -> int:
        """Evaluations without a finite value."""
        return int((~np.isfinite(self.log_densities)).sum())

    def warn(self, first_error) -> None:
        """Warn once of all that speaks against the emulated model."""
        best, failed = self.best, self.num_failed
        problems = []
        if not best.distance < self.tolerance:
            problems.append(
                f"its posterior is at a distance of {best.distance:.2f} from the true one (log densities differ by "
                f"{best.log_ratio_sd:.2g} nats at fresh draws)"
            )
        if not Chains.have_converged(best.rhat):
            problems.append(f"NUTS chains on it do not agree (R-hat {best.rhat:.2f})")
        elif not self.is_confirmed:
            problems.append("this was measured once only")
        if problems:
            warn_user(
                f"the emulated model should not be trusted: {' and '.join(problems)}, after {len(self.evaluated)} "
                "evaluations. Take more evaluations, or a prior or start= nearer to the data."
                + (f" {failed} evaluations failed; the first error: {first_error}" if failed and first_error else "")
            )

    def _held_out_distance(self) -> float:
        """Return the distance at all places like the draws, each with outputs that are learned from other places.

        A round has few fresh draws: those of a step in a function fall beside it more often than not.
        """
        folds = np.arange(len(self.evaluated)) % _FOLDS
        rows_of_parts = []
        for part, (of_part, *_) in zip(self.parts, self.fits, strict=True):
            inputs, outputs, _ = self._values(part)
            predicted = np.full(outputs.shape, np.nan)
            for function in range(part.num_functions):
                mine = part.functions == function
                x, y = inputs[:, mine], outputs[:, mine]
                is_finite = np.isfinite(x).all(axis=2) & np.isfinite(y).all(axis=2)
                fold = np.broadcast_to(folds[:, None], is_finite.shape)[is_finite]
                block = np.full(y.shape, np.nan)
                block[is_finite] = held_out_outputs(of_part[function], x[is_finite], y[is_finite], fold)
                predicted[:, mine] = block
            rows_of_parts.append(predicted)
        least = np.quantile([self.chains.log_density(x) for x in _flat(self.draws)], _TAIL)
        log_ratios = []
        for i, (x, e) in enumerate(zip(self.positions, self.evaluated, strict=True)):
            # Failed ones lie anywhere: fresh draws say how many of the posterior's fail.
            if self.is_chosen[i] or not np.isfinite(e.log_density):
                continue
            if max(self.chains.log_density(x), e.log_density) < least:
                continue
            for shared, predicted in zip(self.given_rows, rows_of_parts, strict=True):
                shared.set_value(predicted[i])
            split = split_positions(self.emulated, x[None], self.shapes)
            log_ratios.append(e.log_density - float(self.density_given(*[p[0] for p in split])))
        return measured(np.array(log_ratios))[0]

    def _begin_at(self, position: np.ndarray) -> None:
        """Make a position (d,) the initial point of the emulated model: away from what was learned all is invented."""
        model = self.emulated
        parts = split_positions(model, position[None], self.shapes)
        values = model.replace_rvs_by_values(model.free_RVs)
        of_free = pymc_compile(model.value_vars, values, mode=STABLE, on_unused_input="ignore")(*[p[0] for p in parts])
        for variable, value in zip(model.free_RVs, of_free, strict=True):
            model.set_initval(variable, value)

    def _fitted(self) -> list[tuple[list[FittedOutputs], list, bool]] | None:
        """Return the arguments of ``LearnedPart.renew`` of each part; None for too few rows."""
        fits = []
        for part in self.parts:
            inputs, outputs, is_factor = self._values(part)
            has_values = np.isfinite(inputs).all(axis=2) & np.isfinite(outputs).all(axis=2)
            # Of several rows without any value nobody knows which one failed.
            has_failed = np.isfinite(inputs).all(axis=2) & ~has_values
            has_failed &= has_values.any(axis=1, keepdims=True) | (has_values.shape[1] == 1)
            of_part, known = [], []
            for function in range(part.num_functions):
                x, y, good, bad = (v[:, part.functions == function] for v in (inputs, outputs, has_values, has_failed))
                if good.sum() < x.shape[2] + 2:
                    return None
                of_part.append(fit_outputs(x[good], y[good], self.rng, self._is_noisy(part, function)))
                known.append((x[good | bad], bad[good | bad]))
            fits.append((of_part, known, is_factor))
        return fits

    def _is_noisy(self, part, function):
        """Return whether a function of a part is an estimate."""
        of_rows = np.concatenate([np.full(self.calls[i].num_rows, self.calls[i].is_estimate) for i in part.calls])
        return bool(of_rows[part.functions == function].any())

    @property
    def _noise_variance(self) -> float:
        """Variance of the log density by the noise of estimates, by the fits; zero without estimates."""
        return sum(
            float((part.functions == f).sum() * fit.noise_variance.sum())
            for part, (of_part, *_) in zip(self.parts, self.fits, strict=True)
            for f, fit in enumerate(of_part)
            if self._is_noisy(part, f)
        )

    def _values(self, part):
        """Return inputs and what is learned (evaluations, rows, k or q) of a part so far, and whether that is a factor.

        Outputs are learned, or how far they are from those of a cheap version: as factors where all are positive.
        """
        members = [(i, self.calls[i]) for i in part.calls]
        inputs = np.array([np.concatenate([c.inputs(e.inputs[i]) for i, c in members]) for e in self.evaluated])
        outputs = np.array([np.concatenate([c.outputs(e.outputs[i]) for i, c in members]) for e in self.evaluated])
        has_rough = np.concatenate([np.full(c.num_rows, i in self.coarse) for i, c in members])
        if not has_rough.any():
            return inputs, outputs, False
        rough = np.zeros_like(outputs)
        rough[:, has_rough] = [np.concatenate([of[i] for i, _ in members if i in of]) for of in self.rough]
        known = np.concatenate([rough[:, has_rough], outputs[:, has_rough]])
        if (known[np.isfinite(known)] > 0.0).all():
            return inputs, outputs / np.where(has_rough[:, None], rough, 1.0), True
        return inputs, outputs - rough, False

    def _renew(self, fits):
        for learned, fit in zip(self.learned, fits, strict=True):
            learned.renew(*fit)


def _flat(draws: np.ndarray) -> np.ndarray:
    """Return draws (chains, n, d) as (chains * n, d)."""
    return draws.reshape(-1, draws.shape[2])
