"""What draws of an emulated model miss: modes that no chain is in, what a penalty leaves out, and ends of tails."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from pymc_kernel.plugin.emulation.chains import Chains, flat_draws, largest_rhat, variances_of
from pymc_kernel.plugin.emulation.emulation import measured

COMPARED = 200  # draws at which two densities are compared
_HALF = 0.5  # of the log likelihood: what half of the data would say
_EVALUATED = 4  # in a round, of those that what is learned leaves out
# Beyond the outermost draw, in units of the way to it from the median. Of a thousand draws of a normal distribution
# the outermost is 3.1 standard deviations out. Far from it, at 4.6, there are no draws unless the tail is heavier. Near
# to it, at 3.6, places are like draws of two or more parameters, and stay on a ridge that is bent: where what is
# learned is lower, it may end too soon.
_FAR, _NEAR = 0.5, 0.15
_REMEMBERED = 2 * _EVALUATED  # the places of two rounds, as many as must agree that the distance is small


class LeftOut(NamedTuple):
    """Places that may be in the posterior and that what is learned leaves out."""

    places: np.ndarray
    """(m, d)."""
    learned: np.ndarray
    """(m,), log densities there by what is learned."""
    possible: np.ndarray
    """(m,), and as high as they may be."""
    times_drawn: np.ndarray
    """(m,), how often each was drawn by the mass that it may have."""


class Challengers:
    """Chains that begin anew, to be compared with those that go on from round to round.

    The posterior may have modes that none of these is in, and never will be. Challengers may, which begin as those of
    ``pm.sample`` will, around a draw, around the user's initial values, and at draws of the prior. Of a model with a
    penalty they sample without it, so that they end in modes that are only possible, too: one evaluation tells.

    Parameters
    ----------
    penalty_share : shared variable or None
        How much the penalty of the model counts; None of a model without.
    num_parameters : int
    rng : numpy.random.Generator

    Attributes
    ----------
    apart : ndarray (m, d)
        Where the latest of them end that are apart from the draws.
    left_out : LeftOut
        Some of what is left out, where it has much mass.
    beyond : ndarray (m, d) or None
        Places beyond the outermost draws, where what is learned has no draws; None where these were not looked for.
    """

    def __init__(self, penalty_share, num_parameters: int, rng: np.random.Generator):
        self._penalty_share, self._rng = penalty_share, rng
        self._num_parameters = num_parameters
        self._wide: Chains | None = None
        self._compared = np.empty((0, 0, num_parameters)), np.empty((0, 0, num_parameters))
        self._real_shares = np.empty(0)
        self._side = -1.0
        self.forget()

    def forget(self) -> None:
        """Have no places to be evaluated."""
        self.apart = np.empty((0, self._num_parameters))
        self.left_out = LeftOut(self.apart, np.empty(0), np.empty(0), np.empty(0, int))
        self.beyond: np.ndarray | None = None

    @property
    def places(self) -> dict[str, np.ndarray]:
        """Places to be evaluated, (m, d) of each kind, in the order in which a batch has them."""
        beyond = self.apart[:0] if self.beyond is None else self.beyond
        return {"apart": self.apart, "left_out": self.left_out.places, "beyond": beyond}

    def challenge(
        self,
        chains: Chains,
        draws: np.ndarray,
        centers: Sequence,
        versions: Callable[[np.ndarray], np.ndarray] | None,
        enough: float,
    ) -> tuple[np.ndarray, float, float]:
        """Compare chains around ``centers`` (chains, d) with ``draws`` (chains, n, d) of ``chains``.

        With ``versions``, as of :meth:`note_possible`, it is asked whether the posterior may go on, where the penalty
        leaves nothing out.

        Returns
        -------
        draws : ndarray (chains, n, d)
            With those of the challengers, if all are of one density and do not agree.
        rhat : float
            Of what is known to be in the posterior.
        distance : float
            Total variation distance between draws without and with the penalty, or from a posterior that goes on, were
            all of that real; from ``enough`` on some of the places that make it are to be evaluated.
        """
        challengers = chains.elsewhere(centers, variances_of(flat_draws(draws)), self._rng)
        both, rhat = self._drawn_beside(challengers, draws)
        if not Chains.have_converged(rhat):  # by chance, it may be: of fifty draws each, in chains that have just begun
            more, _ = chains.draw()
            draws = np.concatenate([draws, more], axis=1)
            both, rhat = self._drawn_beside(challengers, draws)
        if self._penalty_share is None:
            kept = draws if Chains.have_converged(rhat) else both
            nothing = flat_draws(draws[:0])
            return kept, rhat, self._distance_left_out(chains, nothing, kept[: len(draws)], versions, enough)
        own, others = both[: len(draws)], both[len(draws) :]
        is_apart = np.zeros(len(others), bool)
        if not Chains.have_converged(rhat):
            of_each = (largest_rhat(np.concatenate([own, other[None]])) for other in others)
            is_apart = np.array([not Chains.have_converged(rhat) for rhat in of_each])
            self.apart = others[is_apart, -1]
            self._compared = np.concatenate([own, others[~is_apart]]), others[is_apart]
        return draws, 0.0, self._distance_left_out(chains, flat_draws(others[~is_apart]), draws, versions, enough)

    def question(
        self, chains: Chains, draws: np.ndarray, versions: Callable[[np.ndarray], np.ndarray] | None, enough: float
    ) -> float:
        """Return the distance as :meth:`challenge` does, of ``draws`` (populations, n, d) that no chain made."""
        others = draws[:0]
        if self._penalty_share is not None:
            with self._without_penalty():
                others = chains.draw_from(draws[:, -1])
        return self._distance_left_out(chains, flat_draws(others), draws, versions, enough)

    def _distance_left_out(self, chains, others, draws, versions, enough):
        """Return the distance from a posterior without the penalty, by ``others`` (n, d), or from one that goes on."""
        distance = 0.0
        if len(others):
            distance = self.note_left_out(chains, self._rng.permutation(others)[:COMPARED], enough)
        if versions is not None and distance < enough:
            distance = max(distance, self.note_possible(chains, draws, versions, enough))
        return distance

    def _drawn_beside(self, challengers: Chains, draws: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the last of ``draws`` (chains, n, d) with as many draws of challengers after them, and their R-hat."""
        with self._without_penalty():
            others, _ = challengers.draw()
        count = min(draws.shape[1], others.shape[1])
        both = np.concatenate([draws[:, -count:], others[:, -count:]])
        return both, largest_rhat(both)

    def note_left_out(self, chains: Chains, draws: np.ndarray, enough: float) -> float:
        """Note some of ``draws`` (n, d), which are without the penalty, that it leaves out, and return the distance.

        What is not known may well be flat, as where a curve is saturated: then the penalty would cut a tail.
        """
        possible, learned = self._without_and_with(chains, draws)
        losses = possible - learned
        distance = measured(-losses)[0]
        if distance >= enough:
            self._choose(draws, np.maximum(1.0 / len(draws) - softmax(-losses), 0.0), learned, possible)
        return distance

    def note_possible(
        self, chains: Chains, draws: np.ndarray, versions: Callable[[np.ndarray], np.ndarray], enough: float
    ) -> float:
        """Note some places where the posterior may go on, and return the distance from a posterior that does.

        It has at each place the highest density of several versions of what is learned. The places are draws of chains
        with half of the log likelihood, which go further out, and to other modes. That is a bound: of a log likelihood
        of four parameters most of it is not there. How much of it is real, :meth:`take_in` learns.

        Parameters
        ----------
        chains : Chains
        draws : ndarray (chains, n, d)
            Of these.
        versions : callable
            Returns log densities at a place (d,) with outputs as they may be.
        enough : float
        """
        if self._wide is None:
            self._wide = chains.tempered(draws[:, -1], variances_of(flat_draws(draws)), self._rng)
            self._wide.set_power(_HALF)
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
        """Note some of draws (n, d), by their weights, and their log densities as learned and as they may be."""
        drawn = self._rng.choice(len(draws), _EVALUATED, p=weights / weights.sum())
        chosen, times = np.unique(drawn, return_counts=True)
        self.left_out = LeftOut(draws[chosen], learned[chosen], possible[chosen], times)

    def losses(self, chains: Chains, places: np.ndarray) -> np.ndarray:
        """Return the log densities (n,) that the penalty takes at places (n, d)."""
        return np.subtract(*self._without_and_with(chains, places))

    def _without_and_with(self, chains, places):
        """Return log densities (n,) at places (n, d) without the penalty, and with it."""
        with self._without_penalty():
            without = np.array([chains.log_density(x) for x in places])
        return without, np.array([chains.log_density(x) for x in places])

    def note_beyond(self, chains: Chains, draws: np.ndarray, least: float) -> None:
        """Note the places beyond ``draws`` (n, d) with a log density below ``least``.

        Near to them and far out, above them for each parameter and below them in turn.

        Where evaluations end a trend takes over, which knows the steep side of a tail and may fall by twenty nats where
        the tail goes on. Neither chains without the penalty nor with half of the log likelihood get there, and what is
        known of errors does not tell of a wrong trend. So the model is asked, without regard to what was learned.
        """
        self._side = -self._side
        places = np.concatenate([places_beyond(draws, self._side * further) for further in (_NEAR, _FAR)])
        is_like_draws = np.array([chains.log_density(x) >= least for x in places])
        self.beyond = places[~is_like_draws]

    def take_in(self, found: np.ndarray) -> None:
        """Learn how much of what may be left out is real, from true log densities (m,) at the first places left out.

        The places are drawn by the mass that they may have beyond what is learned, so that the mean share of it that
        they do have is that of all the mass.
        """
        _, learned, possible, times = (a[: len(found)] for a in self.left_out)
        is_lower = learned < possible  # with more mass by all versions, one may be no higher than what is learned
        found, learned = found[is_lower] - possible[is_lower], (learned - possible)[is_lower]
        found = np.where(np.isfinite(found), np.minimum(found, 0.0), -np.inf)
        shares = np.maximum(np.exp(found) - np.exp(learned), 0.0) / -np.expm1(learned)
        self._real_shares = np.concatenate([self._real_shares, np.repeat(shares, times[is_lower])])[-_REMEMBERED:]

    @property
    def real_share(self) -> float:
        """What share of the mass that may be left out is real, by the latest places of it; one before there was any.

        The posterior mean under Jeffreys' prior: that a few places have none does not prove that there is none.
        """
        count = len(self._real_shares)
        return float((self._real_shares.sum() + 0.5) / (count + 1)) if count else 1.0

    def real_distance(self, possible: float) -> float:
        """Return the distance from a posterior of which that share is real, where with all it would be ``possible``.

        With a mass m beside that of what is learned, which is one, the distance is m / (1 + m).
        """
        real = possible * self.real_share
        return real / (1.0 - possible + real)

    def modes(self, found: np.ndarray, least: float) -> tuple[np.ndarray, float]:
        """Return those places apart (m, d) that are in modes of the posterior, and the R-hat with the chains there.

        Parameters
        ----------
        found : ndarray (m,)
            True log densities at these places, or at as many as there were evaluations left for: the rest counts.
        least : float
            Log density that hardly any draw is below.
        """
        is_mode = np.full(len(self.apart), True)
        is_mode[: len(found)] = found >= least
        others, apart = self._compared
        return self.apart[is_mode], largest_rhat(np.concatenate([others, apart[is_mode]]))

    @contextmanager
    def _without_penalty(self) -> Iterator[None]:
        if self._penalty_share is None:
            yield
            return
        try:
            self._penalty_share.set_value(0.0)
            yield
        finally:
            self._penalty_share.set_value(1.0)


def places_beyond(draws: np.ndarray, further: float) -> np.ndarray:
    """Return a place beyond the outermost of draws (n, d) for each parameter, (d, d).

    By ``further`` of the way from the median to the outermost draw, the largest one, or the smallest one where it is
    negative. The other parameters are where a quadratic function of that one through the outer half of the draws leads.
    """
    center, places = np.median(draws, axis=0), np.empty((draws.shape[1],) * 2)
    for j, order in enumerate(np.argsort(math.copysign(1.0, further) * draws, axis=0).T):
        outer = draws[order[len(draws) // 2 :]]
        step = abs(further) * (outer[-1, j] - center[j])
        steps = (outer[:, j] - outer[-1, j]) / (step or 1.0)
        places[j] = np.linalg.lstsq(np.vander(steps, 3), outer, rcond=None)[0].sum(axis=0)
        places[j, j] = outer[-1, j] + step
    return places
