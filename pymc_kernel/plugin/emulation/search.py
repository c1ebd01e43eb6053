"""Rounds of an emulated model: learn, draw by NUTS, evaluate draws, compare."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from pymc.pytensorf import compile as pymc_compile
from scipy.stats import chi2

from pymc_kernel.emulation import FittedOutputs, fit_estimates, fit_outputs
from pymc_kernel.emulation.estimates import held_out_estimates
from pymc_kernel.emulation.outputs import held_out_outputs
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.emulation.chains import (
    PRIOR_DRAWS,
    Chains,
    Explorers,
    largest_rhat,
    variances_of,
)
from pymc_kernel.plugin.emulation.coarse import coarse_versions
from pymc_kernel.plugin.emulation.emulated_model import LearnedPart, model_with
from pymc_kernel.plugin.emulation.emulation import (
    Emulation,
    Round,
    measured,
    measured_by_pairs,
    noise_variance,
    normal_distance,
)
from pymc_kernel.plugin.emulation.evaluated import Evaluated
from pymc_kernel.plugin.emulation.structure import Unknown
from pymc_kernel.plugin.model.interpreter import STABLE
from pymc_kernel.plugin.model.priors import initial_position
from pymc_kernel.plugin.model.scores import without_gradient
from pymc_kernel.plugin.model.unconstrained import split_positions, value_shapes
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.warn import warn_user

_NONE: Mapping = MappingProxyType({})
_CHAINS = 4
_UNCERTAIN, _CANDIDATES = 2, 200  # evaluations in a round where what is learned is least certain, of so many draws
_VERSIONS = 4  # of the outputs at a draw, by which its uncertainty is known within a third
_RARE = 1e-3  # of the draws of a normal distribution have a lower log density than a chain that is not lost
_POOR = 0.5  # distance from which on more than half of what is drawn has no place in the posterior
_FOLDS = 10  # of cross-validation
_GROWTH = 0.25  # of a batch of estimates, relative to all so far: one fit costs more than another dozen estimates tell
_LEARNED = 3  # rounds in a row that found nothing to learn, after which chains will not agree by more evaluations
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
        self,
        model: pm.Model,
        unknown: Unknown,
        tolerance: float,
        rng: np.random.Generator,
        coarse: Mapping = _NONE,
        noise_share: float = 0.0,
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
        # Of estimates there are two at each place, one after the other: their noises are independent.
        self.estimated = [i for i, c in enumerate(calls) if c.is_estimate]
        self.repeats = 2 if self.estimated else 1
        self.held_out_errors = self.best_noise = None
        self.noise_share, self.noise_sd = noise_share, 0.0

    def run(self, prior, places: np.ndarray, size: int | None, most: int, evaluate, progressbar: bool) -> None:
        """Evaluate ``places`` (n, d) and learn in rounds of ``size``, until the search has ended or after ``most``.

        It ends, too, where three rounds in a row found nothing to learn and chains do not agree all the same.

        Without ``size`` a round has two evaluations for each coefficient of a linear function of the inputs, and two;
        of a model that is poor, one of each chain: most of its draws show the same fault. Of a model with estimates
        each place is evaluated twice, and a round has at least a quarter of the places so far.

        Parameters
        ----------
        prior : ModelPrior
        evaluate : Evaluations
            Of the true model.
        """
        with progress_bar("First places", most, progressbar) as advance:
            batch = places[: most // self.repeats]
            self.num_own = len(batch)
            while len(batch):
                positions = np.repeat(batch, self.repeats, axis=0)
                vectors = evaluate(len(self.positions), positions, advance)
                self.add(batch, [self.unknown.true.read(v, x) for v, x in zip(vectors, positions, strict=True)])
                if self.best is not None:
                    advance(0, f"Distance {self.best.distance:.2f}")
                if self.has_ended or self.is_divided:
                    break
                batch = self.propose(prior, size or self._batch_size)
                self.num_own = len(batch)
                if self.chains is not None:
                    if self.explorers is None:
                        self.explorers = Explorers(self.chains, prior, self.rng)
                    with interrupts_wait.not_here():
                        explored = self.explorers.draw(self._best_places())
                    self.num_explored = len(explored)
                    batch = np.concatenate([batch, explored, self._most_uncertain()])
                batch = batch[: (most - len(self.positions)) // self.repeats]

    def coarse_places(self, prior, size: int) -> np.ndarray | None:
        """Return draws (size, d) of the model with cheap versions of all its black boxes in their place.

        None where some have none, or where the density with them is zero at a hundred draws of the prior.
        """
        if len(self.coarse) < len(self.calls):
            return None
        for learned in self.learned:
            learned.clear()
        places = prior.draw(self.rng, PRIOR_DRAWS)
        chains = Chains(self.emulated, places[:_CHAINS], variances_of(places), self.rng)
        best = _best(places, np.array([chains.log_density(x) for x in places]))
        if len(best) < _CHAINS:
            return None
        chains.go_to(best)
        draws, _ = chains.draw()
        return self.rng.permutation(_flat(draws))[:size]

    def add(self, batch: np.ndarray, evaluated: list[Evaluated]) -> None:
        """Take in what was evaluated at a batch (n, d); of fresh draws, measure the distance first."""
        if self.fits is not None:
            own, noise = self._measured_at_fresh(batch, evaluated)
            self.noise_sd = float(np.sqrt(noise.sum()))
            self.rounds.append(Round(len(self.positions), *own, self.held_out, self.rhat, self.noise_sd))
            # A round has few draws. The worse of two in a row is no luck, and is not chosen among many for being small.
            worse = max(self.rounds[-2:], key=lambda r: (not Chains.have_converged(r.rhat), r.distance))
            worse = worse._replace(distance=max(worse.distance, self.held_out))
            is_confirmed = len(self.rounds) > 1 and Chains.have_converged(worse.rhat)
            if self.best is None or (is_confirmed, -worse.distance) >= (self.is_confirmed, -self.best.distance):
                self.best, self.is_confirmed = worse, is_confirmed
                self.best_fits, self.best_draws, self.best_noise = self.fits, self.draws, np.sqrt(noise)
        # Beyond the explorers' places are those that were chosen because they cannot be predicted from others.
        is_chosen = np.arange(len(batch)) >= self.num_own + self.num_explored
        self.is_chosen += np.repeat(is_chosen, self.repeats).tolist()
        self.positions = np.concatenate([self.positions, np.repeat(batch, self.repeats, axis=0)])
        self.evaluated += evaluated
        self.rough += [{i: c.rows(e.inputs[i]) for i, c in self.coarse.items()} for e in evaluated]

    def _measured_at_fresh(self, batch, evaluated):
        """Return what was measured at the fresh draws of a batch, and the variances (f,) of the noise of estimates.

        By estimates these draws alone tell little; the places before them, each by what is learned without it, count
        as much.
        """
        explored = slice(self.num_own, self.num_own + self.num_explored)
        if not self.estimated:
            learned = np.array([self.chains.log_density(x) for x in batch])
            log_ratios = np.array([e.log_density for e in evaluated]) - learned
            if log_ratios[explored].size:
                self.explorers.set_power(log_ratios[explored])
            return measured(log_ratios[: self.num_own]), np.zeros(0)
        positions = np.repeat(batch, self.repeats, axis=0)
        errors, inputs = self._errors(positions, evaluated, [self._predicted(e) for e in evaluated])
        if errors[explored].size:
            squares = np.maximum(errors[explored].prod(axis=1).sum(axis=1).mean(), 0.0)
            self.explorers.set_power(np.sqrt([squares]))
        errors, inputs = errors[: self.num_own], [x[: self.num_own] for x in inputs]
        if self.held_out_errors is not None:
            errors = np.concatenate([errors, self.held_out_errors[0]])
            inputs = [np.concatenate(pair) for pair in zip(inputs, self.held_out_errors[1], strict=True)]
        is_finite = np.isfinite(errors).all(axis=(1, 2))
        noise = noise_variance(errors[is_finite][:, :, 1:]) if is_finite.any() else np.zeros(len(inputs))
        return measured_by_pairs(errors, inputs), noise

    def _predicted(self, evaluated):
        """Return the learned outputs (b, q) of each part at the inputs of an evaluation."""
        rows_of_parts = []
        for part, (of_part, *_) in zip(self.parts, self.fits, strict=True):
            inputs = np.concatenate([self.calls[i].inputs(evaluated.inputs[i]) for i in part.calls])
            outputs = np.full((len(inputs), self.unknown.sizes(part)[1]), np.nan)
            for function in range(part.num_functions):
                mine = (part.functions == function) & np.isfinite(inputs).all(axis=1)
                if mine.any():
                    outputs[mine] = of_part[function](inputs[mine])
            rows_of_parts.append(outputs)
        return rows_of_parts

    def _errors(self, positions, evaluated, predicted):
        """Return errors (n, 2, 1 + f) by the estimates of 2 n evaluations, and the inputs (n, k) of f estimated terms.

        Parameters
        ----------
        positions : ndarray (2 n, d)
        evaluated : list of Evaluated
        predicted : list of lists of ndarray (b, q)
            Learned outputs of each part at each of these.
        """
        errors = np.empty((len(evaluated), 1 + len(self.estimated)))
        inputs: list[list] = [[] for _ in self.estimated]
        for row, x, e, rows_of_parts in zip(errors, positions, evaluated, predicted, strict=True):
            of_calls = {}
            for part, rows in zip(self.parts, rows_of_parts, strict=True):
                edges = np.cumsum([self.calls[i].num_rows for i in part.calls])[:-1]
                of_calls |= dict(zip(part.calls, np.split(rows, edges), strict=True))
            row[1:] = [e.outputs[i][0].item() - of_calls[i].item() for i in self.estimated]
            with np.errstate(invalid="ignore"):  # an estimate of zero
                row[0] = e.log_density - self._density_with(rows_of_parts, x) - row[1:].sum()
            for own, i in zip(inputs, self.estimated, strict=True):
                own.append(self.calls[i].inputs(e.inputs[i])[0])
        return errors.reshape(-1, 2, errors.shape[1]), [np.array(x)[::2] for x in inputs]

    @property
    def has_ended(self) -> bool:
        """Whether the distance is known to be within the tolerance."""
        return self.best is not None and self.is_confirmed and self.best.distance < self._enough

    @property
    def is_divided(self) -> bool:
        """Whether all is learned where the chains are, and they do not agree: they are in modes apart, or slow."""
        last = self.rounds[-_LEARNED:]
        if len(last) < _LEARNED or self.estimated:
            return False
        return all(r.distance < self._enough and not Chains.have_converged(r.rhat) for r in last)

    @property
    def _enough(self) -> float:
        """Distance at which the search ends: the tolerance, or what is small beside the noise of estimates."""
        return max(self.tolerance, normal_distance(self.noise_share * self.noise_sd))

    def _density_with(self, rows_of_parts, position):
        """Return the log density at a position (d,) with these outputs (b, q) of the parts."""
        for shared, rows in zip(self.given_rows, rows_of_parts, strict=True):
            shared.set_value(rows)
        split = split_positions(self.emulated, position[None], self.shapes)
        return float(self.density_given(*[p[0] for p in split]))

    @property
    def _batch_size(self) -> int:
        """Places in the next round."""
        size = _CHAINS if self._is_poor else self.unknown.batch_size
        return max(size, int(_GROWTH * len(self.positions)) // self.repeats) if self.estimated else size

    @property
    def _is_poor(self) -> bool:
        """Whether most draws of the emulated model have no place in the posterior, by the last round."""
        return not self.rounds or self.rounds[-1].distance > _POOR

    def propose(self, prior, size: int) -> np.ndarray:
        """Return the places (size, d) to evaluate next: draws of the posterior with all that was learned."""
        self.fits, self.held_out_errors = self._fitted(), None
        if self.fits is None:
            return prior.draw(self.rng, size)
        self._renew(self.fits)
        with interrupts_wait.not_here():
            if self.chains is None:
                places = self._best_places()
                if not len(places):  # a likelihood of zero at all of them
                    return prior.draw(self.rng, size)
                variances = variances_of(prior.draw(self.rng, PRIOR_DRAWS))
                self.chains = Chains(self.emulated, places, variances, self.rng)
            elif not (Chains.have_converged(self.rhat) and self.chains.have_density):
                self._begin_anew()
            if self.explorers is not None:
                self.chains.exchange(self.explorers.chains, self.rng)
            draws, self.rhat = self.chains.draw(is_short=self._is_poor)
            self.draws = draws
            self.held_out = self._held_out_distance() if Chains.have_converged(self.rhat) else 1.0
            if self.held_out < self._enough:
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
        root = np.zeros(len(draws))
        for i, x in enumerate(draws):
            split = [p[0] for p in split_positions(self.emulated, x[None], self.shapes)]
            random_rows, learned = self._random_at(self.inputs_of_parts(*split)), self.chains.log_density(x)
            for _ in range(_VERSIONS):
                root[i] = np.hypot(root[i], self._density_with(random_rows(), x) - learned)  # squares would overflow
        return np.where(np.isfinite(root), root, 0.0) / np.sqrt(_VERSIONS)

    def _random_at(self, inputs):
        """Return what draws outputs (b, q) of each part at its inputs (b, k), as they may be by what was learned."""
        of_parts = []
        for part, rows, (of_part, *_) in zip(self.parts, inputs, self.fits, strict=True):
            masks = [part.functions == function for function in range(len(of_part))]
            of_parts.append([(mine, fit.random_at(rows[mine])) for mine, fit in zip(masks, of_part, strict=True)])

        def drawn():
            rows_of_parts = []
            for part, functions in zip(self.parts, of_parts, strict=True):
                outputs = np.empty((len(part.functions), self.unknown.sizes(part)[1]))
                for mine, random in functions:
                    outputs[mine] = random(self.rng)
                rows_of_parts.append(outputs)
            return rows_of_parts

        return drawn

    def _best_places(self) -> np.ndarray:
        """Return the places (chains, d) with the largest true log density, or mean of two estimates.

        Of estimates that are zero nobody knows how likely they are: their places come last.
        """
        levels = self.log_densities.reshape(-1, self.repeats).mean(axis=1)
        if self.estimated:
            levels = np.where(np.isfinite(levels), levels, np.finfo(float).min)
        return _best(self.positions[:: self.repeats], levels)

    def _begin_anew(self) -> None:
        """Let chains that are lost go on from the best places; others may be in modes of their own, or only slow.

        Lost in a mode that was invented or is far lower, or where an evaluation has failed since: the log density of a
        normal distribution is below its maximum by half a chi-squared variable.
        """
        best, places = self._best_places(), self.chains.places
        known = self.log_densities
        if self.estimated:  # the largest of many estimates is one with large noise
            has_value = np.isfinite(known) | (not np.isfinite(known).any())
            known = np.array([self.chains.log_density(x) for x in self.positions[has_value]])
        least = known.max() - 0.5 * chi2.isf(_RARE, places.shape[1])
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
        others, _ = self.chains.elsewhere(centers, variances_of(flat), self.rng).draw()
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
            noise_sd=dict(zip((self.calls[i].box.name for i in self.estimated), self.best_noise.tolist(), strict=True)),
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
        if self.is_divided:
            warn_user(
                f"the emulated model is learned where its NUTS chains are (distance {self.rounds[-1].distance:.2g}), "
                f"and they do not agree (R-hat {best.rhat:.2f}): its posterior has modes apart, or is hard for NUTS. "
                "More evaluations do not help. pk.sample_smc on the emulated model weighs modes; against slow chains "
                "take another parametrization."
            )
            return
        problems = []
        if not best.distance < self.tolerance:
            # Differences as small as these make no such distance: the rest are draws without a true density.
            if normal_distance(best.log_ratio_sd) > 0.5 * best.distance:
                cause = f"log densities differ by {best.log_ratio_sd:.2g} nats at fresh draws"
            else:
                cause = "at some of its fresh draws the true density is zero, or is not known"
            problems.append(f"its posterior is at a distance of {best.distance:.2f} from the true one ({cause})")
        if not Chains.have_converged(best.rhat):
            problems.append(f"NUTS chains on it do not agree (R-hat {best.rhat:.2f})")
        elif not self.is_confirmed:
            problems.append("this was measured once only")
        if problems:
            warn_user(
                f"the emulated model should not be trusted: {' and '.join(problems)}, after {len(self.evaluated)} "
                "evaluations. Take more evaluations, or a prior or start= nearer to the data."
                + (" Exact draws, by pk.EmulatedNUTS, correct it." if self.estimated else "")
                + (f" {failed} evaluations failed; the first error: {first_error}" if failed and first_error else "")
            )

    def _held_out_distance(self) -> float:
        """Return the distance at all places like the draws, each with outputs that are learned from other places.

        A round has few fresh draws: those of a step in a function fall beside it more often than not.
        """
        folds = np.arange(len(self.evaluated)) // self.repeats % _FOLDS
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
                held_out = held_out_estimates if self.unknown.is_estimate(part) else held_out_outputs
                block[is_finite] = held_out(of_part[function], x[is_finite], y[is_finite], fold)
                predicted[:, mine] = block
            rows_of_parts.append(predicted)
        least = np.quantile([self.chains.log_density(x) for x in _flat(self.draws)], _TAIL)
        kept = [i for i in range(len(self.evaluated)) if self._is_like_draws(i, least)]
        predicted = [[rows[i] for rows in rows_of_parts] for i in kept]
        if not self.estimated:
            learned = [self._density_with(rows, self.positions[i]) for i, rows in zip(kept, predicted, strict=True)]
            return measured(self.log_densities[kept] - np.array(learned))[0]
        if not kept:
            return 1.0
        self.held_out_errors = self._errors(self.positions[kept], [self.evaluated[i] for i in kept], predicted)
        return measured_by_pairs(*self.held_out_errors)[0]

    def _is_like_draws(self, number, least):
        """Return whether an evaluation is where draws are, whose log densities are hardly ever below ``least``."""
        pair = self.evaluated[number // self.repeats * self.repeats :][: self.repeats]
        # Failed ones lie anywhere: fresh draws say how many of the posterior's fail.
        if self.is_chosen[number] or not all(np.isfinite(e.log_density) for e in pair):
            return False
        learned = self.chains.log_density(self.positions[number])
        return learned >= least if self.estimated else max(learned, pair[0].log_density) >= least

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
                own, is_noisy = part.functions == function, self.unknown.is_estimate(part)
                every = slice(None, None, 1 if is_noisy else self.repeats)  # exact values of a place are the same twice
                x, y, good, bad = (v[every][:, own] for v in (inputs, outputs, has_values, has_failed))
                bad = bad & (not is_noisy)
                if good.sum() < x.shape[2] + 2:
                    return None
                of_part.append((fit_estimates if is_noisy else fit_outputs)(x[good], y[good], self.rng))
                known.append((x[good | bad], bad[good | bad]))
            fits.append((of_part, known, is_factor))
        return fits

    def _values(self, part):
        """Return inputs and what is learned (evaluations, rows, k or q) of a part so far, and whether that is a factor.

        Outputs are learned, or how far they are from those of a cheap version: as factors where all are positive.
        """
        members = [(i, self.calls[i]) for i in part.calls]
        inputs = np.array([np.concatenate([c.inputs(e.inputs[i]) for i, c in members]) for e in self.evaluated])
        outputs = np.array([np.concatenate([c.outputs(e.outputs[i]) for i, c in members]) for e in self.evaluated])
        if self.unknown.is_estimate(part):
            outputs = _with_zeros(outputs, part.functions)
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


def _best(places: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the places (chains, d), of (n, d), with the largest finite levels (n,); fewer where these are fewer."""
    finite = np.flatnonzero(np.isfinite(levels))
    return places[finite[np.argsort(-levels[finite])[:_CHAINS]]]


def _with_zeros(log_estimates: np.ndarray, functions: np.ndarray) -> np.ndarray:
    """Return log estimates (n, b, 1) with those of zero a nat below the lowest other one of their function (b,).

    Left out, they would make a likelihood high where an estimate is hardly ever more than zero.
    """
    out = log_estimates.copy()
    for function in np.unique(functions):
        own = out[:, functions == function]
        if (finite := np.isfinite(own)).any():
            out[:, functions == function] = np.where(np.isneginf(own), own[finite].min() - 1.0, own)
    return out


def _flat(draws: np.ndarray) -> np.ndarray:
    """Return draws (chains, n, d) as (chains * n, d)."""
    return draws.reshape(-1, draws.shape[2])
