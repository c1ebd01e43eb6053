"""Look for what draws of an emulated model miss: modes without a chain, and ends of tails."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from pymc_kernel.plugin.emulation.chains import Chains, flat_draws, largest_rhat, variances_of

COMPARED = 200  # draws at which two densities are compared
_EVALUATED = 4  # evaluations in a round at places that the emulated posterior leaves out
# Distances beyond the outermost draw, relative to its distance from the median. The outermost of a thousand normal
# draws is 3.1 standard deviations out. The far place, at 4.6, has no draws unless the tail is heavier. The near place,
# at 3.6, has a density that draws of two or more parameters reach, and stays on a curved ridge: if its emulated density
# is lower, the emulated posterior may end too soon.
_FAR, _NEAR = 0.5, 0.15


class LeftOut(NamedTuple):
    """Places that may be in the posterior, but have next to no mass in the emulated one."""

    places: np.ndarray  # (m, d)
    learned: np.ndarray  # (m,), emulated log densities there
    possible: np.ndarray  # (m,), the highest log densities there of several possible versions of the outputs
    times_drawn: np.ndarray  # (m,), how often each was drawn, in proportion to the mass that it may have


class Challengers:
    """Chains that begin anew in each round, to be compared with those that go on from round to round.

    Chains that go on may all miss a mode for good. Challengers begin as the chains of ``pm.sample`` will: around a
    draw, around the user's initial values, and at draws of the prior. They sample without the penalty, so they also end
    in modes that are only possible; one evaluation shows whether such a mode is real. With an improper prior they keep
    the penalty, since without it what is learned of a few places may have no finite integral.

    ``penalty_share`` is the factor of the model's penalty, a shared variable of one or zero; None without penalty.
    """

    def __init__(self, penalty_share, num_parameters: int, rng: np.random.Generator):
        self._penalty_share, self._rng = penalty_share, rng
        self._num_parameters = num_parameters
        self._wide: Chains | None = None
        self._real_shares = np.empty(0)
        self._side = -1.0
        self.forget()

    def forget(self) -> None:
        """Drop all places to be evaluated."""
        # Last draws (m, d) of the latest challengers that do not agree with the other draws.
        self.apart = np.empty((0, self._num_parameters))
        # Some places that the emulated posterior leaves out, if they may have much mass.
        self.left_out = LeftOut(self.apart, np.empty(0), np.empty(0), np.empty(0, int))
        # Places (m, d) beyond the outermost draws, where the emulated density is too low for draws; None if not sought.
        self.beyond: np.ndarray | None = None

    @property
    def places(self) -> dict[str, np.ndarray]:
        """Places to be evaluated, (m, d) of each kind, in their order in a batch."""
        beyond = self.apart[:0] if self.beyond is None else self.beyond
        return {"apart": self.apart, "left_out": self.left_out.places, "beyond": beyond}

    def challenge(
        self, chains: Chains, draws: np.ndarray, centers: Sequence, is_proper: bool
    ) -> tuple[np.ndarray, float]:
        """Return ``draws`` (chains, n, d) of ``chains`` and R-hat, compared with chains around ``centers`` (chains, d).

        ``is_proper`` is whether the prior is. If challengers sampled the same density, their draws are added where they
        do not agree. If they had no penalty R-hat is zero: :meth:`modes` finds it after evaluations.
        """
        penalty_share = self._penalty_share if is_proper else None
        challengers = chains.elsewhere(centers, variances_of(flat_draws(draws)), self._rng)
        both, rhat = _drawn_beside(challengers, draws, penalty_share)
        if not Chains.have_converged(rhat):  # maybe by chance: fifty draws each, of chains that just began
            more, _ = chains.draw()
            draws = np.concatenate([draws, more], axis=1)
            both, rhat = _drawn_beside(challengers, draws, penalty_share)
        if penalty_share is None:
            return draws if Chains.have_converged(rhat) else both, rhat
        if not Chains.have_converged(rhat):
            own, others = both[: len(draws)], both[len(draws) :]
            of_each = (largest_rhat(np.concatenate([own, other[None]])) for other in others)
            is_apart = np.array([not Chains.have_converged(rhat) for rhat in of_each])
            self.apart = others[is_apart, -1]
            self._compared = np.concatenate([own, others[~is_apart]]), others[is_apart]
        return draws, 0.0

    def note_possible(self, chains: Chains, draws: np.ndarray, versions: Callable, enough: float) -> float:
        """Note some places to which the posterior may extend, and return the distance from a posterior that does.

        At each place it has the highest density of several possible versions of the outputs. The places are draws of
        chains with half of the log likelihood, which go further out, and to other modes. The distance is an upper
        bound: with four parameters, most of that mass is not real. :meth:`take_in` estimates how much is.

        ``versions`` returns log densities at a place (d,) for possible versions of the outputs. Places are noted from a
        distance of ``enough`` on.
        """
        if self._wide is None:
            self._wide = chains.tempered(draws[:, -1], variances_of(flat_draws(draws)), self._rng)
            self._wide.set_power(0.5)  # as with half of the data
        elif not self._wide.have_density:
            self._wide.go_to(draws[:, -1])
        some = self._rng.permutation(flat_draws(self._wide.draw(is_short=True)[0]))[:COMPARED]
        sampled = np.array([self._wide.log_density(x) for x in some])
        learned = np.array([chains.log_density(x) for x in some])
        possible = np.array([versions(x).max() for x in some])
        if not np.isfinite(possible).any():
            return 0.0
        gained = softmax(possible - sampled) - softmax(learned - sampled)
        distance = 0.5 * float(np.abs(gained).sum())
        if distance >= enough:
            self._choose(some, np.maximum(gained, 0.0), learned, possible)
        return distance

    def _choose(self, draws, weights, learned, possible):
        """Note some of the draws (n, d), chosen by weights, with their emulated and their possible log densities."""
        drawn = self._rng.choice(len(draws), _EVALUATED, p=weights / weights.sum())
        chosen, times = np.unique(drawn, return_counts=True)
        self.left_out = LeftOut(draws[chosen], learned[chosen], possible[chosen], times)

    def losses(self, chains: Chains, places: np.ndarray) -> np.ndarray:
        """Return by how much (n,) the penalty lowers the log density at places (n, d)."""
        with _without(self._penalty_share):
            without = np.array([chains.log_density(x) for x in places])
        return without - np.array([chains.log_density(x) for x in places])

    def note_beyond(self, chains: Chains, draws: np.ndarray, least: float) -> None:
        """Note places beyond ``draws`` (n, d), near and far, whose emulated log density is below ``least``.

        Rounds alternate between places above and below, for each parameter. Beyond the evaluations, the emulator
        follows its trend, which may fall by twenty nats where the true tail goes on. No chains get there, and estimated
        errors do not show a wrong trend. So the model is evaluated there, whatever the emulator says.
        """
        self._side = -self._side
        places = np.concatenate([places_beyond(draws, self._side * further) for further in (_NEAR, _FAR)])
        is_like_draws = np.array([chains.log_density(x) >= least for x in places])
        self.beyond = places[~is_like_draws]

    def take_in(self, found: np.ndarray) -> None:
        """Estimate how much of the mass left out is real, from true log densities (m,) at the first of these places.

        As they are drawn in proportion to such mass, the mean of their real shares estimates the real share of all.
        """
        _, learned, possible, times = (a[: len(found)] for a in self.left_out)
        is_lower = learned < possible  # a normalized mass may grow though its density does not
        found, learned = found[is_lower] - possible[is_lower], (learned - possible)[is_lower]
        found = np.where(np.isfinite(found), np.minimum(found, 0.0), -np.inf)
        shares = np.maximum(np.exp(found) - np.exp(learned), 0.0) / -np.expm1(learned)
        # The places of two rounds: so many must confirm a small distance.
        self._real_shares = np.concatenate([self._real_shares, np.repeat(shares, times[is_lower])])[-2 * _EVALUATED :]

    @property
    def real_share(self) -> float:
        """Estimated share of the mass left out that is real, from the latest evaluations there; one before the first.

        The posterior mean under Jeffreys' prior, since a few places without mass do not prove that there is none.
        """
        count = len(self._real_shares)
        return float((self._real_shares.sum() + 0.5) / (count + 1)) if count else 1.0

    def real_distance(self, possible: float) -> float:
        """Return the distance m / (1 + m) of the real share of a mass left out; ``possible`` is that of all of it."""
        real = possible * self.real_share
        return real / (1.0 - possible + real)

    def modes(self, found: np.ndarray, least: float) -> tuple[np.ndarray, float]:
        """Return the last draws (m, d) of challengers in modes of the posterior, and the R-hat with these chains.

        Modes have a true log density of at least ``least``, below which hardly any draw lies. Of ``apart`` the first
        ones have those ``found`` (m,); the others, without an evaluation, count as modes.
        """
        is_mode = np.full(len(self.apart), True)
        is_mode[: len(found)] = found >= least
        others, apart = self._compared
        return self.apart[is_mode], largest_rhat(np.concatenate([others, apart[is_mode]]))


def _drawn_beside(challengers, draws, penalty_share):
    """Return the last of ``draws`` (chains, n, d) with as many draws of challengers after them, and their R-hat."""
    with nullcontext() if penalty_share is None else _without(penalty_share):
        others, _ = challengers.draw()
    count = min(draws.shape[1], others.shape[1])
    both = np.concatenate([draws[:, -count:], others[:, -count:]])
    return both, largest_rhat(both)


@contextmanager
def _without(penalty_share) -> Iterator[None]:
    """Take the penalty away."""
    try:
        penalty_share.set_value(0.0)
        yield
    finally:
        penalty_share.set_value(1.0)


def places_beyond(draws: np.ndarray, further: float) -> np.ndarray:
    """Return for each parameter a place beyond its outermost draw, (d, d), of draws (n, d).

    It lies further out by the share ``further`` of the distance from the median to the largest draw, or to the smallest
    one if the share is negative. The other parameters follow a quadratic fit through the outer half of the draws.
    """
    center, places = np.median(draws, axis=0), np.empty((draws.shape[1],) * 2)
    for j, order in enumerate(np.argsort(math.copysign(1.0, further) * draws, axis=0).T):
        outer = draws[order[len(draws) // 2 :]]
        step = abs(further) * (outer[-1, j] - center[j])
        steps = (outer[:, j] - outer[-1, j]) / (step or 1.0)
        places[j] = np.linalg.lstsq(np.vander(steps, 3), outer, rcond=None)[0].sum(axis=0)
        places[j, j] = outer[-1, j] + step
    return places
