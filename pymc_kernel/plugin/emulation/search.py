"""Rounds of an emulated model: learn, draw by NUTS, evaluate draws, compare."""

from functools import cached_property, partial
from itertools import islice

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.emulation.chains import Chains, Explorers, Particles, flat_draws, share_beyond, variances_of
from pymc_kernel.plugin.emulation.challengers import COMPARED, Challengers
from pymc_kernel.plugin.emulation.coarse import coarse_versions, is_difference
from pymc_kernel.plugin.emulation.emulated_model import LearnedPart, limits_of, model_with
from pymc_kernel.plugin.emulation.emulation import Emulation, Round, measured, measured_by_pairs, normal_distance
from pymc_kernel.plugin.emulation.evaluated import Evaluated
from pymc_kernel.plugin.emulation.given_outputs import GivenOutputs
from pymc_kernel.plugin.emulation.penalty import lost_on_average, with_penalties
from pymc_kernel.plugin.emulation.record import Record, best_of, lowest_like
from pymc_kernel.plugin.emulation.structure import Unknown
from pymc_kernel.plugin.model.interpreter import of_position
from pymc_kernel.plugin.model.priors import PRIOR_DRAWS, ModelPrior, initial_position
from pymc_kernel.plugin.model.unconstrained import constrained_draws
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.rounds.checks import TAIL

# Total variation distance at which searches stop by default: that between two normal distributions which are an eighth
# of their standard deviation apart.
TOLERANCE = 0.05
_CHAINS = 4
_UNCERTAIN = 2  # evaluations in a round where what is learned is least certain, of ``COMPARED`` draws
POOR = 0.5  # distance at which half of the mass that is drawn from is not in the posterior
_GROWTH = 0.25  # of a batch of estimates, relative to all so far: a fit costs more than a dozen estimates are worth
_LEARNED = 3  # rounds in a row that found nothing to learn: after these, evaluations will not make chains agree
_VERSIONS = 4  # of the outputs at a draw, by which its uncertainty is known within a third
_FAVORABLE_OF = 20  # versions of the outputs at a place: the most favorable of so many is like a test at 5 %
_EXACT = (
    " Exact draws correct such a difference, though not a tail or a mode that was never drawn, for an evaluation each: "
    "by pk.EmulatedNUTS, or pk.sample_surrogate with exact=True."
)
MODES_APART = (
    "the emulated model has modes apart, which NUTS chains do not go between: pk.sample_smc on it weighs them, where "
    "pm.sample does not."
)
TOO_FEW = "evaluations are too few to learn from and to measure what was learned"


class Search:
    """Evaluations so far, what was learned of them, and chains on the emulated model."""

    def __init__(self, model: pm.Model, unknown: Unknown, tolerance: float, rng, coarse=None, noise_share: float = 0.0):
        # With a tolerance of zero it never ends early, and is judged by the default.
        self.model, self.tolerance, self.never_ends, self.rng = model, tolerance or TOLERANCE, tolerance == 0.0, rng
        self.estimated, self.repeats = unknown.estimated, unknown.repeats
        self.coarse = coarse_versions(unknown.calls, coarse or {})
        self.given = GivenOutputs(model, unknown, self.coarse)
        self.unknown = unknown = self.given.unknown
        pairs = zip(unknown.parts, self.given.rows, strict=True)
        self.learned = [LearnedPart(part, f"part{i}", rows) for i, (part, rows) in enumerate(pairs)]
        self.emulated, inputs = model_with(model, unknown.calls, unknown.parts, self.learned, self.coarse)
        rows = [learned for part, learned in zip(unknown.parts, self.learned, strict=True) if part.is_row_of_outputs]
        losses = [learned.loss for learned in self.learned if not (learned in rows or learned.loss is None)]
        if rows:
            losses.append(lost_on_average(self.emulated, *self._shifted(rows)))
        self.penalty_share = with_penalties(self.emulated, losses)
        inputs, point = self.emulated.replace_rvs_by_values(inputs), model.initial_point(random_seed=0)
        self._inputs_at = of_position(self.emulated, point, inputs)  # (b, k) of each part, at a position (d,)
        self.initial = initial_position(model)
        self.record = Record(unknown, self.coarse, self.initial.size)
        self.challengers = Challengers(self.penalty_share, self.initial.size, rng)
        self.fits = self.draws = self.best = self.best_fits = self.best_draws = None
        self.margins: list[np.ndarray] = []
        self.rounds: list[Round] = []
        self.is_confirmed = self.lacks_density = False
        self.first_error: str | None = None  # of the evaluations
        self.explorers: Explorers | None = None
        self.particles: Particles | None = None  # where chains stay in modes apart
        self.num_by_chains = 0  # rounds before there were particles
        self.by_particles = self.best_is_by_particles = False
        self.kinds = np.empty(0, str)  # of the places of the latest batch: "own" are draws of the posterior
        self.held_out_errors = self.best_noise = None
        self.held_out_alone = self.may_be_left_out = 0.0  # distances by the last fit
        self.noise_share, self.noise_sd = noise_share, 0.0

    def run(self, prior, places: np.ndarray, size: int | None, most: int, evaluate, progressbar: bool) -> None:
        """Evaluate ``places`` (n, d), then learn in rounds of ``size`` until the search ends or ``most`` are evaluated.

        The search also ends if three rounds in a row found nothing to learn and the chains still do not agree.

        Without ``size`` a round has two evaluations for each coefficient of a linear function of the inputs, plus two.
        While the emulator is poor it has one draw of each chain, as most draws show the same fault. With estimates each
        place is evaluated twice, and a round has at least a quarter of the places so far.
        """
        with progress_bar("First places", most, progressbar) as advance:
            of_kinds, left = {"own": places}, len(places)
            while True:
                kinds = np.repeat(list(of_kinds), [len(own) for own in of_kinds.values()])[:left]
                batch = np.concatenate(list(of_kinds.values()))[:left]
                positions = np.repeat(batch, self.repeats, axis=0)
                vectors = evaluate(len(self.record), positions, advance)
                self.add(batch, [self.unknown.true.read(v, x) for v, x in zip(vectors, positions, strict=True)], kinds)
                if self.best is not None:
                    advance(0, f"Distance {self.best.distance:.2f}")
                if self.is_divided and not self._weigh_modes(prior) and not self.never_ends:
                    break
                of_kinds = {"own": self.propose(prior, size or self._batch_size)}
                left = (most - len(self.record)) // self.repeats
                if ((self.has_ended and not self.never_ends) or not left) and (self._take_in_all() or not left):
                    break
                if self.fits is not None:  # else the batch has draws of the prior
                    of_kinds |= {"explored": self._explored(prior), **self.challengers.places}
                    of_kinds["uncertain"] = self._most_uncertain()

    def _weigh_modes(self, prior) -> bool:
        """Switch to particles and distrust the best fit, which may lack a mode; return False if that is impossible."""
        if self.particles is not None or not prior.is_proper:
            return False
        learned_prior = ModelPrior(self.emulated)  # the model's own may call a black box
        self.particles, self.num_by_chains = Particles(self.chains, learned_prior, self.rng), len(self.rounds)
        self.best, self.is_confirmed = self.best._replace(distance=1.0), False
        return True

    def _explored(self, prior) -> np.ndarray:
        """Return places (m, d) between prior and posterior; none if the prior is improper."""
        if self.by_particles:
            return self.particles.passed
        if not prior.is_proper:
            return np.empty((0, self.initial.size))
        self.explorers = self.explorers or Explorers(self.chains, prior, self.rng)
        with interrupts_wait.not_here():
            return self.explorers.draw(self._best_places())

    def _take_in_all(self) -> bool:
        """Judge the fit that includes the last evaluations, and keep it if it is no worse than the best so far.

        No fresh draws follow it: held-out predictions, chains from elsewhere and R-hat judge. Return whether the search
        may end: not while its chains disagree, or chains from elsewhere end in possible modes that were not evaluated.
        """
        if self.best is None or self.fits is None:
            return False
        if not Chains.have_converged(self.rhat):
            self.is_confirmed = False
            return False
        is_best = self.held_out < max(self._enough, self.best.distance)
        if is_best:
            self.best_fits, self.best_draws = self.fits, self.draws
            self.best_is_by_particles = self.by_particles
            self.best = self.best._replace(rhat=self.rhat)
        self.best = self.best._replace(distance=max(self.best.distance, self.held_out))
        return is_best and not len(self.challengers.apart)

    @cached_property
    def chains(self) -> Chains:
        """Chains on the emulated model, compiled when first needed, so that bad input is refused without a wait."""
        return Chains(self.emulated)

    def coarse_places(self, prior, size: int) -> np.ndarray | None:
        """Return draws (size, d) of the model with cheap versions in place of all black boxes, before it is learned.

        None if some black box has no cheap version, or if fewer than four of two hundred prior draws have a density.
        """
        if len(self.coarse) < len(self.unknown.calls):
            return None
        places = prior.draw(self.rng, PRIOR_DRAWS)
        best = places[best_of(np.array([self.chains.log_density(x) for x in places]))[:_CHAINS]]
        if len(best) < _CHAINS:
            return None
        self.chains.begin(best, variances_of(places), self.rng)
        draws, _ = self.chains.draw()
        return self.rng.permutation(flat_draws(draws))[:size]

    def add(self, batch: np.ndarray, evaluated: list[Evaluated], kinds: np.ndarray) -> None:
        """Take in the evaluations of a batch (n, d), whose fresh draws measure the distance before they are learned.

        ``kinds`` (n,) has the kind of each place: "own", "explored", one of ``Challengers.places``, or "uncertain".
        """
        num_learned, self.kinds = len(self.record), kinds
        # All but the first two kinds were chosen because they cannot be predicted from other places.
        self.record.add(batch, evaluated, ~np.isin(kinds, ["own", "explored"]))
        if self.fits is not None:
            own, noise = self._measured_at_fresh(batch, evaluated)
            self._take_in_modes()
            if not self.estimated:  # noise hides whether a single place has mass
                self.challengers.take_in(self._found("left_out"))
            self.noise_sd = float(np.sqrt(noise.sum()))
            self.rounds.append(Round(num_learned, *own, self.held_out, self.rhat, self.noise_sd, self._share_beyond()))
            # A round has few draws. The worse of two in a row is small neither by luck nor by selection among many.
            latest = self.rounds[self.num_by_chains :][-2:]
            worse = max(latest, key=lambda r: (not Chains.have_converged(r.rhat), r.distance))
            worse = worse._replace(distance=max(worse.distance, self.held_out))
            is_confirmed = len(latest) > 1 and Chains.have_converged(worse.rhat)
            if self.best is None or (is_confirmed, -worse.distance) >= (self.is_confirmed, -self.best.distance):
                self.best, self.is_confirmed = worse, is_confirmed
                self.best_fits, self.best_draws, self.best_noise = self.fits, self.draws, np.sqrt(noise)
                self.best_is_by_particles = self.by_particles

    def _measured_at_fresh(self, batch, evaluated):
        """Return what was measured at the fresh draws of a batch, and the noise variances (f,) of estimates.

        With estimates these few draws say little, so earlier places, each predicted without itself, count as well.
        """
        own, explored = self.kinds == "own", self.kinds == "explored"
        if not self.estimated:
            learned = np.array([self.chains.log_density(x) for x in batch])
            log_ratios = np.array([e.log_density for e in evaluated]) - learned
            if log_ratios[explored].size:
                learns = self.particles.take_in if self.by_particles else self.explorers.set_power
                learns(log_ratios[explored])
            return measured(log_ratios[own]), np.zeros(0)
        positions = np.repeat(batch, self.repeats, axis=0)
        given = ([self.unknown.inputs_of(part, e) for part in self.unknown.parts] for e in evaluated)
        predicted = [self.given.learned_outputs(inputs, self.fits) for inputs in given]
        errors, inputs = self.given.errors(positions, evaluated, predicted)
        if self.penalty_share is not None:  # draws are from the density that it lowers
            errors[:, :, 0] += self.challengers.losses(self.chains, batch)[:, None]
        if errors[explored].size:
            squares = np.maximum(errors[explored].prod(axis=1).sum(axis=1).mean(), 0.0)
            self.explorers.set_power(np.sqrt([squares]))
        errors, inputs = errors[own], [x[own] for x in inputs]
        if self.held_out_errors is not None:
            errors = np.concatenate([errors, self.held_out_errors[0]])
            inputs = [np.concatenate(pair) for pair in zip(inputs, self.held_out_errors[1], strict=True)]
        *own, noise = measured_by_pairs(errors, inputs)
        return own, noise

    @property
    def held_out(self) -> float:
        """Largest distance found without fresh draws: at held-out places, and by mass that may be left out."""
        return max(self.held_out_alone, self.challengers.real_distance(self.may_be_left_out))

    @property
    def has_ended(self) -> bool:
        """Whether the distance is confirmed to be within the tolerance, and the posterior ends where the draws do."""
        has_bounds = not self.unknown.may_go_on or all(r.beyond == 0.0 for r in self.rounds[-2:])
        has_all = self.particles is None or self.particles.know_the_way
        is_near = self.best is not None and self.is_confirmed and self.best.distance < self._enough
        return is_near and has_bounds and has_all

    @property
    def is_divided(self) -> bool:
        """Whether all is learned where chains or particles are, and they disagree: separate modes, or slow mixing."""
        last = self.rounds[self.num_by_chains :][-_LEARNED:]
        if len(last) < _LEARNED or self.estimated:
            return False
        # One chain of ten in a spurious mode gives a distance of only a tenth, however wrong the log density is.
        farthest = (max(r.distance, normal_distance(r.log_ratio_sd)) for r in last)
        return all(f < self._enough for f in farthest) and not any(Chains.have_converged(r.rhat) for r in last)

    @property
    def _enough(self) -> float:
        """Distance at which the search ends: the tolerance, or one that is small beside the noise of estimates."""
        return max(self.tolerance, normal_distance(self.noise_share * self.noise_sd))

    @property
    def _batch_size(self) -> int:
        """Places in the next round."""
        size = _CHAINS if self._is_poor else self.unknown.batch_size
        return max(size, int(_GROWTH * len(self.record)) // self.repeats) if self.estimated else size

    @property
    def _is_poor(self) -> bool:
        """Whether most draws of the emulated model are outside of the posterior, by the last round; True before one."""
        return not self.rounds or self.rounds[-1].distance > POOR

    def learn(self) -> bool:
        """Learn from all evaluations so far; return whether they are enough."""
        self.margins, self.held_out_errors = self._margins(), None
        fits = self.record.fits(self.margins, self.rng)
        if fits is None:
            return False
        if self.draws is None:
            self._find_limits()
        self.fits = [(*fit, steps) for fit, steps in zip(fits, self._steps(fits), strict=True)]
        self._renew(self.fits)
        return True

    def propose(self, prior, size: int) -> np.ndarray:
        """Learn, and return the places (size, d) to evaluate next: draws of the emulated posterior."""
        self.challengers.forget()
        if not self.learn():
            return prior.draw(self.rng, size)
        with interrupts_wait.not_here():
            best = self._best_places()
            self.lacks_density = not len(best)
            if self.lacks_density:  # the likelihood, or the emulated one, is zero at all of them
                self.fits = None
                return prior.draw(self.rng, size)
            self.draws, self.rhat = self._draw(prior, best)
            self.held_out_alone = self._held_out_distance() if Chains.have_converged(self.rhat) else 1.0
            self.may_be_left_out = 0.0
            if self.held_out_alone < self._enough:
                centers = [self.rng.choice(flat_draws(self.draws)), self.initial, *prior.draw(self.rng, _CHAINS)]
                if self.by_particles:
                    lacking = share_beyond(self.draws, self.chains.draw(is_short=True)[0])
                    self.held_out_alone = max(self.held_out_alone, lacking)
                else:
                    self.draws, rhat = self.challengers.challenge(self.chains, self.draws, centers, prior.is_proper)
                    self.rhat = max(self.rhat, rhat)
                if self.unknown.may_go_on:
                    asked = self.chains, self.draws, self._versions, self._enough
                    self.may_be_left_out = self.challengers.note_possible(*asked)
                    self.challengers.note_beyond(self.chains, flat_draws(self.draws), self._least())
        each = -(-size // len(self.draws))
        kept = np.linspace(0, self.draws.shape[1], each + 1).astype(int)[1:] - 1
        return flat_draws(self.draws[:, kept].transpose(1, 0, 2))[:size]

    def _draw(self, prior, best):
        """Return draws (chains, n, d) of the emulated model and their R-hat; chains begin at the ``best`` places."""
        if self.particles is not None:
            try:
                drawn, rhat = self.particles.draw(_CHAINS)
                self.by_particles = True
                self.chains.go_to(drawn[:, -1])
                return drawn, rhat
            except ValueError:  # no draw of the prior has a density
                self.by_particles = False
        if self.draws is None:
            self.chains.begin(best, variances_of(prior.draw(self.rng, PRIOR_DRAWS)), self.rng)
        elif not (Chains.have_converged(self.rhat) and self.chains.have_density):
            # Chains are lost in a spurious or far lower mode, or where an evaluation has failed since: they move to the
            # best places. The others may be in modes of their own, or mix slowly.
            least = self._least()
            lost = [c for c, x in enumerate(self.chains.places) if not self.chains.log_density(x) >= least]
            self.chains.places[lost] = best[: len(lost)]
        if self.explorers is not None:
            self.chains.exchange(self.explorers.chains, self.rng)
        return self.chains.draw(is_short=self._is_poor)

    def _most_uncertain(self) -> np.ndarray:
        """Return the draws (_UNCERTAIN, d) whose log density is the least certain; none while the emulator is poor.

        Of the next draws, a share of about 2 / n lies beyond the range of the n places learned from, for each input.
        """
        if self._is_poor:
            return np.empty((0, self.initial.size))
        draws = self.rng.permutation(flat_draws(self.draws))[:COMPARED]
        off = np.array([self._versions(x, _VERSIONS) - self.chains.log_density(x) for x in draws])
        sizes = np.hypot.reduce(off, axis=1)  # squares would overflow
        return draws[np.argsort(-np.where(np.isfinite(sizes), sizes, 0.0))[:_UNCERTAIN]]

    def _versions(self, place, number=_FAVORABLE_OF):
        """Return log densities at a place (d,) with outputs drawn at random from what is learned."""
        return self.given.versions(place, self._inputs_at(place), self.fits, number, self.rng)

    def _find_limits(self) -> None:
        """Look for limits of outputs, at the two best places."""
        has_density = best_of(self.record.log_densities)
        best = has_density[:2]
        if len(best) < 2:
            return
        values = [self.record.values(part)[1] for part in self.unknown.parts]
        ask = partial(self.given.has_density, [[v[i] for v in values] for i in best], self.record.positions[best])
        for number, (part, learned, outputs) in enumerate(zip(self.unknown.parts, self.learned, values, strict=True)):
            if not is_difference(part, self.coarse):
                learned.limits.set_value(limits_of(partial(ask, number), outputs[best], outputs[has_density]))

    def _best_places(self) -> np.ndarray:
        """Return the best known places (chains, d) where the emulated model has a density; some repeated, or none."""
        known = (x for x in self.record.best_places(len(self.record)) if np.isfinite(self.chains.log_density(x)))
        best = list(islice(known, _CHAINS))
        return np.array(best)[np.arange(_CHAINS) % len(best)] if best else np.empty((0, self.initial.size))

    def _least(self):
        """Return the log density below which hardly any draw lies, given the largest one known."""
        known = self.record.log_densities
        if self.estimated:  # the largest of many estimates is one with large noise
            has_value = np.isfinite(known) | (not np.isfinite(known).any())
            known = np.array([self.chains.log_density(x) for x in self.record.positions[has_value]])
        return lowest_like(known.max(), self.initial.size)

    def _margins(self):
        """Return by how many nats rows (n, b) of each part exceed the lowest level of draws; zero without penalty.

        Each row replaces that of the best place, all else equal: one subject may be near where others are far off.
        """
        margins = [np.zeros((len(self.record), len(part.functions))) for part in self.unknown.parts]
        best = int(np.argmax(self.record.log_densities))
        position, largest = self.record.positions[best], self.record.log_densities[best]
        if self.penalty_share is None or not np.isfinite(largest):
            return margins
        values = [self.record.values(part) for part in self.unknown.parts]
        for learned, (*_, is_factor) in zip(self.learned, values, strict=True):
            learned.is_factor.set_value(float(is_factor))
        rows_of_parts, least = [outputs[best] for _, outputs, _ in values], lowest_like(largest, self.initial.size)
        for number, (part, (_, outputs, _)) in enumerate(zip(self.unknown.parts, values, strict=True)):
            if part.has_penalty and not part.like.is_estimate:
                margins[number] = self.given.levels(rows_of_parts, position, outputs, number) - least
        return margins

    def _shifted(self, rows):
        """Return the emulated model with outputs of rows shifted by a multiple of their errors, and this multiple."""
        shift = pt.dscalar("shift")
        for learned in rows:
            learned.shift = shift
        return model_with(self.model, self.unknown.calls, self.unknown.parts, self.learned, self.coarse)[0], shift

    def _steps(self, fits):
        """Return the largest errors (b, e) of the rows of each part, see ``penalty.py``; not used without penalty."""
        places = self.record.best_places(_CHAINS) if self.draws is None else self.chains.places
        curvatures = self.given.curvatures(places, [self._inputs_at(x) for x in places], fits, self.rng)
        steps = []
        for part, (of_part, *_), own in zip(self.unknown.parts, fits, curvatures, strict=True):
            if part.is_row_of_outputs:
                # Before a search has draws of the posterior, or all modes, it has to go where nothing was evaluated.
                explores = self._is_poor or self.particles is not None
                reach = 0.0 if explores else of_part[0].reach
                steps.append(reach * self.rng.choice([-1.0, 1.0], (1, len(of_part[0].reach))))
            elif part.is_term:
                steps.append(np.array([[np.sqrt((of_part[f].directions ** 2).sum())] for f in part.functions]))
            else:
                steps.append(np.sqrt(own)[:, None])
        return steps

    def _take_in_modes(self) -> None:
        """Include challengers that ended in the posterior in R-hat, and move at most half of the chains there."""
        if not len(self.challengers.apart):
            return
        modes, rhat = self.challengers.modes(self._found("apart"), self._least())
        self.rhat = max(self.rhat, rhat)
        modes = modes[: _CHAINS // 2]
        self.chains.places[: len(modes)] = modes

    def _share_beyond(self) -> float:
        """Return the share of the places beyond the draws to which the posterior extends, by the latest evaluations."""
        beyond, found = self.challengers.beyond, self._found("beyond")
        if beyond is None or len(found) < len(beyond):
            return np.nan
        return float(np.mean(found >= self._least())) if len(found) else 0.0

    def _found(self, kind):
        """Return the true log densities at one kind of the latest places; fewer if the batch was cut off."""
        return self.record.levels[-len(self.kinds) :][self.kinds == kind]

    def result(self) -> pm.Model:
        """Return the emulated model with the best fit."""
        if self.best is None:
            said = f" The first error: {self.first_error}" if self.first_error else ""
            if self.lacks_density and np.isfinite(self.record.log_densities).any():
                said = (
                    " The emulated model has no density at any of their places, though the model has. Where outputs of "
                    "a black box meet a condition together, such as rows that sum to one or an order, let the model "
                    f"see to it, as by p / p.sum(axis=-1, keepdims=True).{said}"
                )
            raise ValueError(f"{len(self.record)} {TOO_FEW}.{said}")
        self._renew(self.best_fits)
        # It is wrong far from what was learned, so its initial point is the best place.
        variables = self.emulated.free_RVs
        values = constrained_draws(self.emulated, self._best_places()[:1], [v.name for v in variables])
        for variable in variables:
            self.emulated.set_initval(variable, values[variable.name][0])
        best, record, names = self.best, self.record, [self.unknown.calls[i].box.name for i in self.estimated]
        measures = best.distance, best.log_ratio_sd, best.effective_share, best.rhat
        noise_sd = dict(zip(names, self.best_noise.tolist(), strict=True))
        found = noise_sd, pd.DataFrame(self.rounds), flat_draws(self.best_draws), record.positions, record.log_densities
        self.emulated.emulation = Emulation(len(record), record.num_failed, *measures, *found)
        return self.emulated

    def problem(self) -> str:
        """Return what speaks against the emulated model; empty if nothing does."""
        best, failed, first_error = self.best, self.record.num_failed, self.first_error
        sampler = "particles" if self.by_particles else "NUTS chains"
        if self.is_divided:
            last = self.rounds[-1]
            return (
                f"the emulated model is learned where its {sampler} are (a distance of {last.distance:.2g} at "
                f"fresh draws), but they do not agree (R-hat {last.rhat:.2f}), so that the distance from the true "
                "posterior is not known: it has modes apart, or is hard to sample. More evaluations do not help. Take "
                + ("" if self.by_particles else "a proper prior, from which particles can weigh modes, or ")
                + "another parametrization."
            )
        problems, is_far = [], not best.distance < self.tolerance
        # Smaller differences do not explain the distance: the rest is from draws without a true density.
        differ = is_far and normal_distance(best.log_ratio_sd) > 0.5 * best.distance
        chains_agree = Chains.have_converged(best.rhat)
        if is_far:
            cause = f"log densities differ by {best.log_ratio_sd:.2g} nats at fresh draws"
            if not differ:
                cause = (
                    "at some of its fresh draws the true density is zero, or is not known, or the posterior may go on "
                    "where nothing was evaluated"
                )
            problems.append(f"its posterior is at a distance of {best.distance:.2g} from the true one ({cause})")
        if not chains_agree:
            problems.append(f"{sampler} on it do not agree (R-hat {best.rhat:.2f})")
        elif not self.is_confirmed:
            problems.append("one round alone confirms its distance, or its chains no longer agree after the last one")
        if self.particles is not None and not self.particles.know_the_way:
            problems.append("it may lack modes: on the way from the prior it was not found right within a nat")
        if not problems:
            return ""
        return (
            f"the emulated model should not be trusted: {' and '.join(problems)}, after {len(self.record)} "
            "evaluations. Take more evaluations, or a prior or start= nearer to the data."
            + (_EXACT if differ and chains_agree and best.distance < POOR else "")
            + (f" {failed} evaluations failed; the first error: {first_error}" if failed and first_error else "")
        )

    def _held_out_distance(self) -> float:
        """Return the distance at all places like the draws, each predicted from other places.

        The few fresh draws of a round would mostly miss a step in a function.
        """
        rows_of_parts = self.record.held_out(self.margins, self.fits)
        least = np.quantile([self.chains.log_density(x) for x in flat_draws(self.draws)], TAIL)
        levels = np.array([self.chains.log_density(x) for x in self.record.positions])
        if not self.estimated:
            levels = np.maximum(levels, self.record.log_densities)
        # Failed ones lie anywhere: fresh draws show how many posterior draws fail.
        usable = np.repeat(np.isfinite(self.record.levels), self.repeats) & ~np.array(self.record.is_chosen)
        kept = np.flatnonzero(usable & (levels >= least))
        predicted = [[rows[i] for rows in rows_of_parts] for i in kept]
        if not self.estimated:
            positions = self.record.positions[kept]
            learned = [self.given.log_density(*pair) for pair in zip(predicted, positions, strict=True)]
            return measured(self.record.log_densities[kept] - np.array(learned))[0]
        if not kept.size:
            return 1.0
        evaluated = [self.record.evaluated[i] for i in kept]
        self.held_out_errors = self.given.errors(self.record.positions[kept], evaluated, predicted)
        return measured_by_pairs(*self.held_out_errors)[0]

    def _renew(self, fits):
        for learned, fit in zip(self.learned, fits, strict=True):
            learned.renew(*fit)
