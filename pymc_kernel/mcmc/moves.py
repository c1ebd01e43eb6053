"""The moves of kernel HMC: their kinds, how they are measured, and the share that each kind gets.

Moves are measured by the normalized expected squared jumping distance: acceptance probability times squared jumps of
the whitened coordinates z and of their squares, over twice their variances. For a stationary chain it is one minus the
autocorrelation, so that independent draws have a measure of one; the smallest over coordinates and squares counts. It
uses acceptance probabilities, not outcomes, so that a few dozen moves of a kind are enough to measure it.

Imports NumPy and the lower floors only.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.mcmc import adaptive_metropolis as walk
from pymc_kernel.mcmc.surrogate_fit import INVERSE_TEMPERATURE, Fit, from_unit, to_unit
from pymc_kernel.mcmc.trajectory import leapfrog, surrogate_chain, vary_step_size

__all__ = [
    "ALONG_SURROGATE",
    "DIFFERENCE",
    "MOVES",
    "NAMES",
    "SURVEY",
    "WALK",
    "Choice",
    "Move",
    "after_tuning",
    "along_surrogate",
    "averaged",
    "costs",
    "difference",
    "exploring",
    "first",
    "given",
    "measured",
    "squared_jumps",
    "with_difference",
    "with_surrogate",
]


class Move(NamedTuple):
    """A kind of move."""

    place: int  # index in arrays with an entry for each kind
    name: str
    num_trajectories: int = 0  # along the surrogate; of several, the surrogate alone decides which are accepted
    length: float = 1.0  # of a trajectory, in units of the longest
    inverse_temperature: float = 1.0  # of the surrogate


#: In the order of their cost.
MOVES = (
    Move(0, "walk"),
    Move(1, "difference"),
    Move(2, "short trajectory", 1, 0.25),
    Move(3, "trajectory", 1),
    Move(4, "4 trajectories", 4),
    Move(5, "16 trajectories", 16),
    Move(6, "8 trajectories on the tempered surrogate", 8, 1.0, INVERSE_TEMPERATURE),
    Move(7, "survey"),
)
NAMES = tuple(move.name for move in MOVES)
WALK, DIFFERENCE, SHORT, LONG, FOUR, SIXTEEN, HOT, SURVEY = MOVES
ALONG_SURROGATE = [m.place for m in MOVES if m.num_trajectories]
# Of one core: nothing is timed, because what the clock says would change the draws.
_EVALUATION = 100.0  # microseconds, of a quick likelihood with PyMC around it
_STEP, _STEP_SQUARE = 0.1, 0.6e-3  # microseconds of a leapfrog step, and for each entry of a matrix (d, d)
_STEP_POINT, _STEP_COORDINATE = 0.7e-3, 0.12e-3  # and for each point of the surrogate, and each of its coordinates

_FULL_DIFFERENCE_SHARE = 0.1  # of differences, taken at their full length: from mode to mode
_NOISE_OF_DIFFERENCES = 1e-3  # in units of the walk's factor, so that a difference can reach any place
_DIFFERENCE_SHARE = 0.3  # of the exploring moves
_LEAST_DIFFERENCE_SHARE = 0.1  # of the exploring moves, where a single chain takes them from its own past
_SURVEY_SHARE = 0.15  # of all moves while tuning, once there is a surrogate from values
_MEMORY = 150.0  # moves of a kind that its measure is averaged over
_MEMORY_OF_OLD_FIT = 20.0  # of these, at most, from before the last fit
_FEWEST_TRIED = 5  # moves of each kind along the surrogate before it can be judged worse than exploring
_NEARLY_BEST = 0.8  # share of the best measure that a few dozen moves cannot distinguish from it
# A surrogate's share is small unless its moves are measured this many times better than exploring. A regression on
# values knows the density beyond the visited positions, at rejected proposals; a score learned from draws does not.
_CLEARLY_BETTER = {"values": 2.0, "draws": 5.0}
_NEARLY_INDEPENDENT = 0.5  # measure above which scores learned from draws are trusted in any case
_SMALL_SHARE = 0.2  # leaves the random walk eight moves in ten, and so at least 80 % of its own efficiency
_USELESS_SHARE = 0.15  # of the surrogate moves while tuning, to see whether a later surrogate is better
_SAFE_SHARE = 0.05  # of the surrogate moves after tuning, each for single trajectories and the tempered surrogate


class Choice(NamedTuple):
    """Probabilities of the kinds of moves, and what they follow from."""

    shares: np.ndarray  # (kinds,), of sum one
    jumps: np.ndarray  # (kinds, 2 d), normalized squared jumps times acceptance probability, averaged
    counts: np.ndarray  # (kinds,), moves that they are averaged over

    @property
    def worth(self) -> np.ndarray:
        """The measure of each kind, (kinds,)."""
        return self.jumps.min(axis=1)


# -- proposals ---------------------------------------------------------------------------------


def difference(rng: np.random.Generator, position: np.ndarray, places: np.ndarray, factor) -> tuple[np.ndarray, float]:
    """Return x + g (a - b) + small noise, a and b two of the visited ``places`` (n, d), and g.

    Differential evolution on the chain's own past (ter Braak and Vrugt 2008).
    """
    d = position.size
    # A chain that never moved has only one position.
    first, second = rng.choice(len(places), 2, replace=len(places) < 2)
    scale = 1.0 if rng.random() < _FULL_DIFFERENCE_SHARE else walk.optimal_scale(2 * d)
    end = position + scale * (places[first] - places[second])
    return walk.propose(end, factor, _NOISE_OF_DIFFERENCES, rng.standard_normal(d)), scale


def along_surrogate(
    rng: np.random.Generator, position: np.ndarray, fit: Fit, move: Move
) -> tuple[np.ndarray, int, float]:
    """Return a place, the number of leapfrog steps, and the log ratio of the surrogate or of the kinetic energies."""
    here = to_unit(fit.factor, fit.mean, position)
    longest = max(1, int(move.length * fit.num_steps))
    # Random lengths, from half the longest on: otherwise periodic trajectories might return to their start every time.
    lengths = rng.integers((longest + 1) // 2, longest + 1, size=move.num_trajectories)
    momenta = rng.standard_normal((lengths.size, position.size))
    step_sizes = vary_step_size(rng, fit.step_size, lengths.size) / math.sqrt(move.inverse_temperature)
    num_steps = int(lengths.sum())
    if move.num_trajectories == 1:
        there, momentum, _ = leapfrog(here, momenta[0], step_sizes[0], lengths[0], fit.expansion)
        with np.errstate(over="ignore", invalid="ignore"):  # a trajectory that diverged
            log_ratio = 0.5 * (momenta[0] @ momenta[0] - momentum @ momentum)
    else:
        uniforms = rng.random(lengths.size)
        expansion = fit.expansion if move.inverse_temperature == 1.0 else fit.tempered
        there, end, begin, _ = surrogate_chain(here, momenta, uniforms, lengths, step_sizes, expansion)
        log_ratio = begin - end
        if np.array_equal(there, here):
            return position, num_steps, 0.0
    return from_unit(fit.factor, fit.mean, there), num_steps, float(log_ratio)


# -- shares -------------------------------------------------------------------------------


def exploring(difference_share: float) -> np.ndarray:
    """Return the shares of kinds without a surrogate."""
    shares = np.zeros(len(MOVES))
    shares[WALK.place], shares[DIFFERENCE.place] = 1.0 - difference_share, difference_share
    return shares


def first(num_dims: int) -> Choice:
    """Return the choice before anything is known: the walk."""
    kinds = len(MOVES)
    return Choice(exploring(0.0), np.zeros((kinds, 2 * num_dims)), np.zeros(kinds))


def given(exploring_share: float) -> np.ndarray:
    """Return the shares of kinds along a surrogate that is good from the start, where evaluations are costly."""
    share = 1.0 - exploring_share
    shares = exploring_share * exploring(_DIFFERENCE_SHARE)
    shares[[LONG.place, HOT.place]] = _SAFE_SHARE * share
    shares[SIXTEEN.place] = (1.0 - 2.0 * _SAFE_SHARE) * share
    return shares


def with_difference(choice: Choice) -> Choice:
    """Return the choice between walk and differences, once enough positions have been visited for differences."""
    return choice._replace(shares=exploring(_DIFFERENCE_SHARE))


def squared_jumps(before: np.ndarray, after: np.ndarray, accept_prob: float) -> np.ndarray:
    """Return the normalized squared jumps (2 d,) of one move, from whitened positions (d,) before it and proposed."""
    return accept_prob * np.concatenate([(after - before) ** 2 / 2.0, (after**2 - before**2) ** 2 / 4.0])


def measured(choice: Choice, move: Move, jumps: np.ndarray) -> Choice:
    """Return the choice with one more move of a kind in its average."""
    averages, counts, k = choice.jumps.copy(), choice.counts.copy(), move.place
    counts[k] = min(counts[k] + 1.0, _MEMORY)
    averages[k] += (jumps - averages[k]) / counts[k]
    return choice._replace(jumps=averages, counts=counts)


def averaged(choices) -> Choice:
    """Return the choice with the measures of several chains together, and the shares of the first."""
    counts = np.array([c.counts for c in choices])
    total = np.maximum(counts.sum(axis=0), 1.0)
    jumps = np.einsum("ck,ckj->kj", counts, [c.jumps for c in choices]) / total[:, None]
    return Choice(choices[0].shares, jumps, np.minimum(counts.max(axis=0), total))


def with_surrogate(choice: Choice, learns_from: str, exploring_share: float, has_survey: bool) -> Choice:
    """Return the choice while a chain tunes with a new surrogate: all kinds of moves along it are tried."""
    counts = choice.counts.copy()
    counts[ALONG_SURROGATE] = np.minimum(counts[ALONG_SURROGATE], _MEMORY_OF_OLD_FIT)
    best, walking = choice.worth[ALONG_SURROGATE].max(), _worth_of_exploring(choice)
    share = 1.0 - exploring_share
    # A surrogate that was tried and is worse than exploring gets a smaller share until the next fit.
    if counts[ALONG_SURROGATE].min() >= _FEWEST_TRIED and best < walking:
        share = _USELESS_SHARE
    elif learns_from == "draws" and not _is_clearly_better(best, walking, learns_from):
        share = min(_SMALL_SHARE, share)
    shares = (1.0 - share) * exploring(_DIFFERENCE_SHARE)
    shares[ALONG_SURROGATE] = share / len(ALONG_SURROGATE)
    if has_survey:
        shares *= 1.0 - _SURVEY_SHARE
        shares[SURVEY.place] = _SURVEY_SHARE
    return choice._replace(shares=shares, counts=counts)


def costs(fit: Fit) -> np.ndarray:
    """Return the microseconds (kinds,) of a move of each kind by a count of its work, with a quick likelihood."""
    m, d = fit.expansion.coefficients.size, fit.mean.size
    step = _STEP + _STEP_SQUARE * d**2 + m * (_STEP_POINT + _STEP_COORDINATE * d)
    lengths = [0.75 * max(1, int(move.length * fit.num_steps)) for move in MOVES]  # between half and all of them
    return _EVALUATION + step * np.array([n * move.num_trajectories for n, move in zip(lengths, MOVES, strict=True)])


def after_tuning(choice: Choice, learns_from: str, exploring_share: float, fit: Fit | None, is_settled: bool) -> Choice:
    """Return the choice for after tuning.

    Of the kinds of moves along the surrogate whose measures are as good as the best up to noise, the one that is worth
    most for its cost gets the share that exploring and the two safe kinds (single trajectories, chains on the tempered
    surrogate) leave. A surrogate that is
    not clearly better than exploring gets two moves in ten, one that is worse gets none.

    Parameters
    ----------
    fit : Fit or None
        The surrogate, if there is one.
    is_settled : bool
        Whether the chain is in the bulk. While the log density still rises, large jumps are burn-in and do not show how
        the chain will mix.
    """
    worth, walking = choice.worth, _worth_of_exploring(choice)
    best = worth[ALONG_SURROGATE].max()
    share = 1.0 - exploring_share if fit is not None and best >= walking and best > 0.0 else 0.0
    if not (is_settled and _is_clearly_better(best, walking, learns_from)):
        share = min(share, _SMALL_SHARE)
    # Alone with the walk, differences of visited points get no more than they are worth.
    is_alone = share == 0.0 and worth[DIFFERENCE.place] < worth[WALK.place]
    shares = (1.0 - share) * exploring(_LEAST_DIFFERENCE_SHARE if is_alone else _DIFFERENCE_SHARE)
    if share > 0.0:
        cost = costs(fit)
        close = [k for k in ALONG_SURROGATE if worth[k] >= _NEARLY_BEST * best]
        main = max(close, key=lambda k: worth[k] / cost[k])
        # A chain on the surrogate gets stuck where the surrogate is too low; these two kinds of moves get away.
        shares[[LONG.place, HOT.place]] += _SAFE_SHARE * share
        shares[main] += (1.0 - 2.0 * _SAFE_SHARE) * share
    return choice._replace(shares=shares)


def _worth_of_exploring(choice):
    return max(choice.worth[WALK.place], choice.worth[DIFFERENCE.place])


def _is_clearly_better(worth, exploring, learns_from):
    wanted = _CLEARLY_BETTER[learns_from] * exploring
    return worth >= (wanted if learns_from == "values" else min(wanted, _NEARLY_INDEPENDENT))
