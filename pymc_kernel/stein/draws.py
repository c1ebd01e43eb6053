"""Draws and their scores as arrays: checks, standardization, thinning of chains."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_points, as_weights
from pymc_kernel.stein.straighten import normal_margins, straighten

STANDARDIZATIONS = ("straighten", "whiten", "scale", "none")

_SMALLEST_EIGENVALUE = 1e-10  # of a correlation matrix
_LARGEST_LAG_SHARE = 0.1  # of the shortest chain


class ScoredChains(NamedTuple):
    """Draws of several chains, one after the other."""

    draws: np.ndarray  # (n, d)
    scores: np.ndarray  # (n, d)
    lengths: tuple[int, ...]  # of the chains
    weights: np.ndarray  # (n,), of mean one


def as_chains(draws, scores, weights=None) -> ScoredChains:
    """Return draws and scores, (n, d) or (chain, draw, d) or a sequence of (draw, d), as :class:`ScoredChains`.

    Raises ``ValueError`` where the shapes differ, there are fewer than two draws, or numbers are not finite.
    """
    parts = []
    for name, values in (("draws", draws), ("scores", scores)):
        is_list = isinstance(values, list | tuple) and values and np.ndim(values[0]) == 2
        chains = [np.asarray(c, dtype=float) for c in (values if is_list or np.ndim(values) == 3 else [values])]
        chains = [c[:, None] if c.ndim == 1 else c for c in chains]
        if any(c.ndim != 2 or 0 in c.shape or c.shape[1] != chains[0].shape[1] for c in chains):
            raise ValueError(f"{name} must have shape (n, d) or (chain, draw, d), got {np.shape(values)}.")
        parts.append(chains)
    if [c.shape for c in parts[0]] != [c.shape for c in parts[1]]:
        shapes = [[c.shape for c in chains] for chains in parts]
        raise ValueError(f"draws and scores must have the same shape, got {shapes[0]} and {shapes[1]}.")
    joined, lengths = [np.concatenate(chains) for chains in parts], tuple(map(len, parts[0]))
    if sum(lengths) < 2:
        raise ValueError("at least two draws are needed.")
    for name, values in zip(("draws", "scores"), joined, strict=True):
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad:
            raise ValueError(
                f"{bad} of {len(values)} {name} are not finite: such draws lie outside the model's support, or the "
                "gradient is not defined there. Find out why before you drop them."
            )
    size = sum(lengths)
    if weights is None:
        return ScoredChains(*joined, lengths, np.ones(size))
    parts = weights if isinstance(weights, list | tuple) else [weights]
    weights = size * as_weights(np.concatenate([np.ravel(part) for part in parts]), size)
    return ScoredChains(*joined, lengths, weights)


def merge_repeats(chains: ScoredChains) -> ScoredChains:
    """Return the different draws of positive weight, each where it comes first, with the weight of all its repeats.

    Importance resampling and rejected proposals repeat draws. A sum over draws is the same with repeats as with
    weights; its variance is that of a sum over the different draws. Scores of equal draws are averaged: they may differ
    if other variables, not looked at, do.
    """
    _, first, index = np.unique(chains.draws, axis=0, return_index=True, return_inverse=True)
    if first.size == len(chains.draws) and chains.weights.min() > 0.0:
        return chains
    total = np.bincount(index.ravel(), chains.weights)
    scores = np.zeros((first.size, chains.scores.shape[1]))
    np.add.at(scores, index.ravel(), chains.weights[:, None] * chains.scores)
    kept = np.argsort(first)
    kept = kept[total[kept] > 0.0]
    if kept.size < 2:
        raise ValueError("at least two different draws of positive weight are needed.")
    edges = np.searchsorted(first[kept], np.cumsum((0, *chains.lengths)))
    scores, total = scores[kept] / total[kept, None], total[kept]
    lengths = tuple(int(length) for length in np.diff(edges) if length)
    return ScoredChains(chains.draws[first[kept]], scores, lengths, total / total.mean())


def standardize(draws: np.ndarray, scores: np.ndarray, how: str = "straighten") -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d) in standardized coordinates.

    A discrepancy depends on the coordinates; here they come from the draws. With z = W (x - mean), the score of z is
    W'^-1 times that of x. Raises ``ValueError`` where a coordinate is constant, or there are too few draws to whiten.

    Parameters
    ----------
    how : {"straighten", "whiten", "scale", "none"}
        "scale" divides each coordinate by its standard deviation. "whiten" removes the correlations, too, by the
        symmetric root of their matrix: of all whitenings the one whose coordinates are closest to the parameters
        (Kessy, Lewin and Strimmer 2018, ZCA-cor), so that a coordinate can still be called by its name. "straighten"
        first divides coordinates by their scale if it clearly depends on another one (as in a funnel), then whitens,
        then stretches or shrinks tails that are clearly not normal (see ``stein/straighten.py``). It is the same as
        "whiten" where there is neither.
    """
    if how not in STANDARDIZATIONS:
        raise ValueError(f"how must be one of {', '.join(STANDARDIZATIONS)}, got {how!r}.")
    draws, scores = as_points(draws, "draws"), as_points(scores, "scores")
    if draws.shape != scores.shape:
        raise ValueError(f"draws and scores must have the same shape, got {draws.shape} and {scores.shape}.")
    if how == "none":
        return draws, scores
    spread = draws.std(axis=0)
    if not (spread > 0.0).all():
        constant = np.flatnonzero(~(spread > 0.0)).tolist()
        raise ValueError(f"coordinates {constant} of the draws are constant: the chain has not moved in them.")
    centered = (draws - draws.mean(axis=0)) / spread
    scores = scores * spread
    if how == "straighten":
        straight, scores = straighten(centered, scores)
        is_same = straight is centered
        straight, scores = _whitened(straight, scores) if is_same else standardize(straight, scores, "whiten")
        margins, pulled = normal_margins(straight, scores)
        return (straight, scores) if margins is straight else standardize(margins, pulled, "scale")
    return (centered, scores) if how == "scale" else _whitened(centered, scores)


def _whitened(draws, scores):
    """Return standardized draws and their scores without correlations."""
    n, d = draws.shape
    if d == 1:
        return draws, scores
    if n <= 2 * d:
        raise ValueError(f'{n} draws are too few to whiten {d} coordinates: use how="scale".')
    values, vectors = np.linalg.eigh(draws.T @ draws / n)
    values = np.maximum(values, _SMALLEST_EIGENVALUE)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse_root = (vectors / np.sqrt(values)) @ vectors.T
    return draws @ inverse_root, scores @ root


def autocorrelation(draws: np.ndarray, lengths: tuple[int, ...], weights: np.ndarray | None = None):
    """Return a function from a lag to the largest autocorrelation of a coordinate, pooled over chains.

    With weights (n,) of the draws it is that of the terms of weighted means.
    """
    weights = np.ones(len(draws)) if weights is None else weights
    edges = np.cumsum(lengths)[:-1]
    parts = zip(np.split(draws, edges), np.split(weights, edges), strict=True)
    centered = [w[:, None] * (c - np.average(c, axis=0, weights=w)) for c, w in parts]
    variance = sum((c**2).sum(axis=0) for c in centered)
    variance = np.where(variance > 0.0, variance, 1.0)

    def at(lag):
        return (sum((c[lag:] * c[:-lag]).sum(axis=0) for c in centered) / variance).max()

    return at


def choose_thinning(
    draws: np.ndarray, lengths: tuple[int, ...], largest: float = 0.25, weights: np.ndarray | None = None
) -> int:
    """Return the smallest lag at which no coordinate's autocorrelation, pooled over chains, is ``largest`` or more.

    At most a tenth of the shortest chain; chains that need more have hardly moved.
    """
    correlation = autocorrelation(draws, lengths, weights)
    limit = max(1, int(min(lengths) * _LARGEST_LAG_SHARE))
    lag, step = 1, 1
    while lag < limit and correlation(lag) >= largest:
        step, lag = lag, min(2 * lag, limit)
    # The correlation falls below ``largest`` somewhere in (step, lag]; bisection, as if it were monotone.
    while lag - step > 1:
        middle = (lag + step) // 2
        step, lag = (middle, lag) if correlation(middle) >= largest else (step, middle)
    return lag


def thin_chains(chains: ScoredChains, thin: int) -> ScoredChains:
    """Return every ``thin``-th draw of each chain."""
    starts = np.cumsum((0, *chains.lengths))
    rows = np.concatenate([np.arange(start, stop, thin) for start, stop in pairwise(starts)])
    lengths, weights = tuple(-(-n // thin) for n in chains.lengths), chains.weights[rows]
    return ScoredChains(chains.draws[rows], chains.scores[rows], lengths, weights / weights.mean())
