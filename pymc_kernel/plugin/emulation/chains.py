"""Sample an emulated model, which changes from round to round.

NUTS chains keep their positions and tuning between rounds; particles weigh modes that chains do not cross between.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
import pymc as pm
from pymc.blocking import RaveledVars
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt

from pymc_kernel.plugin.model.interpreter import compiling
from pymc_kernel.plugin.model.priors import PRIOR_DRAWS, STARTS_TRIED, ModelPrior
from pymc_kernel.rounds.particles import sample_particles

_EXPLORERS = 2  # additional chains with an evaluation a round: 8 of 8 runs on hares and lynx were right, 4 of 6 without
_POWER_GROWTH = 2.0  # largest factor by which their power grows in a round: two values say little about an error
SMALLEST_VARIANCE = 1e-12  # where all draws are equal, or all is known: above rounding, and its root has a finite slope
_BLOCK = 50  # draws of each chain between two checks of convergence
_FEWEST_BLOCKS, _MOST_BLOCKS = 2, 20  # at most as many draws as pm.sample makes
_CONVERGED = 1.1  # R-hat of the later half of the draws: with some hundred a chain, noise alone gives about this
_TREE_DEPTH = 8  # at most 255 leapfrog steps: a draw ends however bad a surrogate's geometry is
_FEWEST = 250  # particles of a population: a dozen are in a mode with a twentieth of the mass
_ENOUGH = 1.0  # nats, of a log weight: no mode is lost by such an error


class Chains:
    """Several chains of PyMC's NUTS on one model, which never stop tuning; :meth:`begin` starts them.

    ``places`` (chains, d) are their current positions.
    """

    def __init__(self, model: pm.Model):
        self._model, self._function = model, density_and_gradient(model, tempered=True)

    def nuts(self, model: pm.Model, target_accept: float) -> pm.NUTS:
        """Return PyMC's step for the model, without compiling it again."""
        return pm.NUTS(model=model, logp_dlogp_func=self._function, target_accept=target_accept)

    def begin(self, starts: np.ndarray, variances: np.ndarray, rng: np.random.Generator) -> None:
        """Begin at ``starts`` (chains, d), with a first guess of the posterior's variances (d,)."""
        self.go_to(starts)
        self._steps = []
        for start, own in zip(starts, rng.spawn(len(starts)), strict=True):
            metric = first_metric(start, variances, own.spawn(1)[0])
            settings = {"potential": metric, "max_treedepth": _TREE_DEPTH, "rng": own}
            self._steps.append(pm.NUTS(model=self._model, logp_dlogp_func=self._function, **settings))

    def go_to(self, positions: np.ndarray) -> None:
        """Move the chains to other positions (chains, d); they keep their tuning."""
        self.places = np.array(positions, dtype=float)

    @property
    def have_density(self) -> bool:
        """Whether the current model has a density where the chains are."""
        return all(np.isfinite(self.log_density(x)) for x in self.places)

    def log_density(self, position: np.ndarray) -> float:
        """Return the log density of the current model at a position (d,)."""
        return float(self._function._pytensor_function(position)[0])

    def elsewhere(self, centers: Sequence, variances: np.ndarray, rng: np.random.Generator) -> "Chains":
        """Return chains that begin as ``pm.sample`` does, at most one unit from each of ``centers`` (chains, d).

        If none of twenty such places has a density, a chain begins at the first of ``centers``.
        """
        starts = []
        for center in centers:
            tried = (center + rng.uniform(-1.0, 1.0, center.size) for _ in range(STARTS_TRIED))
            starts.append(next((x for x in tried if np.isfinite(self.log_density(x))), centers[0]))
        others = copy(self)
        others.begin(np.array(starts), variances, rng)
        return others

    def tempered(self, starts: np.ndarray, variances: np.ndarray, rng: np.random.Generator) -> "Chains":
        """Return chains of the same model whose likelihood has its own power, see :meth:`set_power`."""
        others = copy(self)
        with compiling():
            others._function = self._function.copy()
        others.begin(starts, variances, rng)
        return others

    def exchange(self, others: "Chains", rng: np.random.Generator) -> None:
        """Exchange places with chains of another power (replica exchange), so that modes they found are passed on."""
        for mine, theirs in zip(rng.permutation(len(self.places)), range(len(others.places)), strict=False):
            x, y = self.places[mine].copy(), others.places[theirs].copy()
            gain = self.log_density(y) - others.log_density(y) - self.log_density(x) + others.log_density(x)
            if -rng.exponential() < gain:
                self.places[mine], others.places[theirs] = y, x

    def set_power(self, power: float) -> None:
        """Raise the likelihood to this power, between zero and one, from now on."""
        self._function.set_weights(np.array([power]))

    def draw(self, is_short: bool = False) -> tuple[np.ndarray, float]:
        """Return the later half of new draws (chains, n, d), and their largest R-hat.

        Draws are made in blocks, at least two and at most twenty, until the chains agree; short runs have two.
        """
        most = _FEWEST_BLOCKS if is_short else _MOST_BLOCKS
        blocks, largest = [], np.inf
        while len(blocks) < _FEWEST_BLOCKS or (len(blocks) < most and not self.have_converged(largest)):
            blocks.append(np.stack([self._block(c) for c in range(len(self._steps))]))
            kept = np.concatenate(blocks[len(blocks) // 2 :], axis=1)
            largest = largest_rhat(kept)
        return kept, largest

    @staticmethod
    def have_converged(rhat: float) -> bool:
        """Return whether chains with this R-hat agree."""
        return rhat < _CONVERGED

    def _block(self, chain):
        place, draws = raveled(self.places[chain]), []
        with np.errstate(all="ignore"):  # a trajectory that runs away is a divergence
            for _ in range(_BLOCK):
                place, _ = self._steps[chain].astep(place)
                draws.append(place.data)
        self.places[chain] = place.data
        return draws


def density_and_gradient(model: pm.Model, tempered: bool = False):
    """Return the function of one vector that PyMC's NUTS calls, without a check of its input at each call."""
    with compiling():
        function = model.logp_dlogp_function(ravel_inputs=True, tempered=tempered)
    function._pytensor_function.trust_input = True
    return function


def raveled(position: np.ndarray) -> RaveledVars:
    """Return a copy of a position (d,) as one variable, in the form that PyMC's steps take."""
    return RaveledVars(position.copy(), (("position", position.shape, position.size, position.dtype),))


def variances_of(draws: np.ndarray) -> np.ndarray:
    """Return the variances (d,) of draws (n, d), above zero."""
    return np.maximum(draws.var(axis=0), SMALLEST_VARIANCE)


def first_metric(start: np.ndarray, variances: np.ndarray, rng: np.random.Generator) -> QuadPotentialDiagAdapt:
    """Return an adaptive metric for a chain that begins at ``start`` (d,), with a first guess of variances (d,)."""
    return QuadPotentialDiagAdapt(len(start), start.copy(), variances, 10, rng=rng)  # as ten draws, as PyMC has it


def flat_draws(draws: np.ndarray) -> np.ndarray:
    """Return draws (chains, n, d) as (chains * n, d)."""
    return draws.reshape(-1, draws.shape[2])


def largest_rhat(draws: np.ndarray) -> float:
    """Return the largest split R-hat (Gelman et al. 2013) of any parameter of draws (chains, n, d)."""
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]])
    within, between = halves.var(axis=1, ddof=1).mean(axis=0), halves.mean(axis=1).var(axis=0, ddof=1)
    return float(np.sqrt((half - 1) / half + between / within).max()) if within.all() else np.inf


class Explorers:
    """Chains on an emulated model with a tempered likelihood: its power is as high as the emulator's accuracy supports.

    They begin at draws of the prior, with a power of zero.
    """

    def __init__(self, chains: Chains, prior: ModelPrior, rng: np.random.Generator):
        places = prior.draw(rng, PRIOR_DRAWS)
        self.chains = chains.tempered(places[:_EXPLORERS], variances_of(places), rng)
        self._power = 0.0

    def draw(self, best: np.ndarray) -> np.ndarray:
        """Return the last draws (explorers, d); all chains restart at the ``best`` places if one has no density."""
        self.chains.set_power(self._power)
        if not self.chains.have_density:
            self.chains.go_to(best[:_EXPLORERS])
        draws, _ = self.chains.draw(is_short=True)
        return draws[:, -1]

    def set_power(self, log_ratios: np.ndarray) -> None:
        """Choose the next power so that it times the error, from ``log_ratios`` (explorers,), is at most one nat."""
        error = np.sqrt(np.mean(np.square(log_ratios)))
        if np.isfinite(error):
            most = _POWER_GROWTH * self._power if self._power else 1.0
            self._power = min(1.0, most, 1.0 / max(1.0, error))


class Particles:
    """Populations of tempered particles (``rounds.particles``) from a proper prior to an emulated model's posterior.

    Populations are independent, so R-hat has its usual meaning. The emulator weights the particles at every power: a
    mode whose particles get too little weight is lost for good. So the true model is also evaluated at one particle of
    each population before each power: those of the latest draws are ``passed`` (n, d), in random order.
    """

    def __init__(self, chains: Chains, prior: ModelPrior, rng: np.random.Generator):
        self._chains, self._prior, self._rng = chains, prior, rng
        self._errors: list[np.ndarray] = []

    def draw(self, populations: int, size: int = _FEWEST) -> tuple[np.ndarray, float]:
        """Return draws (populations, size, d) of the current model, and their largest R-hat.

        Each draw takes some hundred evaluations of the emulated model. Raises ``ValueError`` where no draw of the prior
        has a density.
        """
        number = max(size, _FEWEST)
        found = [sample_particles(r, self._prior, self._log_likelihood, number) for r in self._rng.spawn(populations)]
        powers = np.concatenate([one.powers for one in found])
        passed = np.array([self._rng.choice(particles) for one in found for particles in one.passed])
        order = self._rng.permutation(len(powers))  # random, since a batch may be cut off
        self._powers, self.passed = powers[order], passed[order]
        draws = np.array([one.positions for one in found])
        return draws[:, :size], largest_rhat(draws)

    def take_in(self, log_ratios: np.ndarray) -> None:
        """Record true minus emulated log densities (m,) at the first of ``passed``, times the next powers.

        Only differences above zero count: a lower true density loses no mode, nor does a place without density (NaN).
        """
        missed = np.where(log_ratios > 0.0, log_ratios, 0.0)
        self._errors = [*self._errors[-1:], self._powers[: len(missed)] * missed]

    @property
    def know_the_way(self) -> bool:
        """Whether log weights at the next powers were too low by less than a nat (root mean square), in two rounds."""
        return len(self._errors) > 1 and bool(np.mean(np.square(np.concatenate(self._errors))) < _ENOUGH**2)

    def _log_likelihood(self, positions):
        """Return the emulated log likelihoods (n,): the log density without the prior's."""
        return np.array([self._chains.log_density(x) for x in positions]) - self._prior.log_density(positions)


def share_beyond(draws: np.ndarray, others: np.ndarray) -> float:
    """Return the share of ``others`` (c, m, d) outside of the range of ``draws`` (populations, n, d), beyond chance.

    Populations may agree though all lack the same thin tail; NUTS chains that begin at particles reach it.
    """
    n, d = draws.shape[0] * draws.shape[1], draws.shape[2]
    low, high = draws.min(axis=(0, 1)), draws.max(axis=(0, 1))
    share = ((others < low) | (others > high)).any(axis=2).mean()
    by_chance = 1.0 - (1.0 - 2.0 / (n + 1.0)) ** d
    return max(float(share) - by_chance, 0.0)
