"""Moves of each part of the particles, learned from the other parts.

A transition that is learned from the particles that it moves does not leave their distribution invariant. Particles
that happen to lie too close together have a small covariance, so their steps are short and they stay close; particles
too far apart take long steps and mix. On average they stay too close together and the evidence comes out too large, the
more so in many dimensions. Given the other parts, the transition of a part is fixed. Descendants stay in the part of
their ancestors, from the first stage on: with close relatives in other parts a part would in effect learn from itself.
The surrogate of the Hamiltonian move is the exception: where it learns from values, all parts share the one that is
fitted to all evaluations, as a value does not depend on which particle evaluated it.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pymc_kernel.smc.moves import Evaluated, Moves, Proposals


class Fitted(NamedTuple):
    """What the moves of each fold have learned from the other folds; fold k is the rows edges[k] to edges[k + 1]."""

    edges: np.ndarray  # (k + 1,)
    learned: tuple  # of length k


def split(num_particles: int, num_folds: int) -> np.ndarray:
    """Return the edges (k + 1,) of stretches of rows of about equal length."""
    return np.arange(num_folds + 1) * num_particles // num_folds


def descend(edges: np.ndarray, ancestors: np.ndarray, num_folds: int) -> np.ndarray:
    """Return the edges of the folds of descendants, which stay in the folds of their ancestors; empty folds vanish.

    A fold that has become so large that the others are too few to learn from is split in the middle, between two
    families. The rows of the ancestors (n,) are in increasing order: members of a family and of a fold are neighbours.
    """
    n = len(ancestors)
    begins = [0, *(np.flatnonzero(np.diff(ancestors)) + 1), n]
    largest = n * (num_folds + 1) / (2 * num_folds)  # 1, 3/4, 2/3, 5/8, ... of the particles
    boundaries = set(np.searchsorted(ancestors, edges[1:-1])) | {0, n}
    while True:
        boundaries = sorted(boundaries)
        k = int(np.argmax(np.diff(boundaries)))
        start, stop = boundaries[k], boundaries[k + 1]
        inside = [b for b in begins if start < b < stop]
        if stop - start <= largest or not inside:
            return np.array(boundaries, dtype=int)
        boundaries.append(min(inside, key=lambda b: abs(2 * b - start - stop)))


def fit(
    rng: np.random.Generator, moves: Moves, particles: Evaluated, evaluated: Evaluated, inverse_temperature: float,
    learned: Fitted | None, edges: np.ndarray,
) -> Fitted:  # fmt: skip
    """Return what the moves of each fold, see :func:`descend`, learn from the particles of the others.

    A single fold learns from itself; so does a fold if the others have too few distinct positions to span the space.
    Raises ``ValueError`` where all particles lie in a subspace.
    """
    before = (None,) if learned is None else learned.learned
    fits = []
    for k, (start, stop) in enumerate(pairwise(edges)):
        others = particles.take(np.r_[0:start, stop : edges[-1]])
        if np.unique(others.positions[:, 0]).size < others.positions.shape[1] + 2:
            others = particles
        previous, shared = before[min(k, len(before) - 1)], fits[0] if fits else None
        fits.append(moves.fit(rng, others, evaluated, inverse_temperature, previous, shared))
    return Fitted(edges, tuple(fits))


def propose(rng: np.random.Generator, moves: Moves, positions: np.ndarray, fitted: Fitted) -> Proposals:
    """Return a proposal for every particle by the moves of its fold."""
    stretches = zip(pairwise(fitted.edges), fitted.learned, strict=True)
    parts = [moves.propose(rng, positions[start:stop], learned) for (start, stop), learned in stretches]
    *arrays, places = zip(*parts, strict=True)
    return Proposals(*map(np.concatenate, arrays), places)


def adapt(moves: Moves, fitted: Fitted, proposals: Proposals, accept_prob: np.ndarray) -> Fitted:
    """Return what was learned after a move of all particles; each fold's scale follows the acceptance of all.

    The scale is one number, and learning it from the particles that it moves has not measurably biased the evidence.
    """
    own = zip(fitted.learned, proposals.places, strict=True)
    learned = [moves.adapt(one, proposals._replace(places=places), accept_prob) for one, places in own]
    return fitted._replace(learned=tuple(learned))
