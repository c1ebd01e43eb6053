"""Errors of a posterior at the observation itself, estimated from held-out cases around it. Imports NumPy and SciPy.

The ranks of held-out cases' parameters in their posteriors are uniform where posteriors are right, and their normal
scores standard normal. A posterior whose errors grow towards the edge of the simulations may still be right on average
over its neighbors: a regression on the positions of the cases estimates the error at the observation.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gamma, ndtri
from scipy.stats import norm

__all__ = ["LocalErrors", "local_errors", "misfit", "moves_from"]

_MAX_SCORE = 4.0  # normal scores are clipped there: larger ones are certain misses, and a single one would decide
_MEAN_ROOT = 2.0**0.25 * gamma(0.75) / np.sqrt(np.pi)  # of the absolute value of a standard normal variable
_CASES_A_SLOPE = 15  # cases for each slope, at least: more slopes would add more noise than they explain
_FALSE_ALARMS = 0.01  # share of right posteriors that are reported
_ROUNDING = 1e-9  # of the largest coordinates: places that differ by less are tied
_SMALL_SHIFT = 0.25  # posterior standard deviations that need no warning
_SMALL_STRETCH = 0.3  # relative error of the spread that needs no warning


class LocalErrors(NamedTuple):
    """The errors expected at the observation, with standard errors; arrays (p,)."""

    shift: np.ndarray
    """How far true parameters lie above the posterior's middle, in posterior standard deviations."""
    shift_error: np.ndarray
    spread: np.ndarray
    """True spread in units of the posterior's: above one where the posterior is too narrow."""
    spread_error: np.ndarray


def local_errors(ranks: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> LocalErrors:
    """Return the errors of posteriors at the observation.

    Parameters
    ----------
    ranks : ndarray (m, p)
        Posterior probabilities below the true parameters of held-out cases.
    moves : ndarray (m, k)
        How far their observations are from the one in question.
    weights : ndarray (m,)
        Of the cases, of sum one.

    Notes
    -----
    Intercepts of weighted linear regressions on the moves, along as many principal components as there are cases for.
    Standard errors allow for unequal variances (White 1980, with leverages).
    """
    scores = np.clip(ndtri(np.clip(ranks, 1e-12, 1.0 - 1e-12)), -_MAX_SCORE, _MAX_SCORE)
    design = np.hstack([np.ones((len(ranks), 1)), _main_directions(moves, weights)])
    shift, shift_error = _intercepts(design, scores, weights)
    # Square roots of absolute scores are nearly normal themselves, where squares have long tails.
    root, root_error = _intercepts(design, np.sqrt(np.abs(scores)), weights)
    root, root_error = np.maximum(root, 0.0) / _MEAN_ROOT, root_error / _MEAN_ROOT
    return LocalErrors(shift, shift_error, root**2, 2.0 * np.maximum(root, 1.0) * root_error)


def moves_from(place: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return ``places`` (m, k) minus ``place`` (k,); what is rounding is zero, or ties would seem to lie apart."""
    moves = places - place
    return np.where(np.abs(moves) > _ROUNDING * np.maximum(np.abs(places), np.abs(place)).max(axis=0), moves, 0.0)


def misfit(errors: LocalErrors) -> str:
    """Return a text on significant errors; empty otherwise, as for 99 of 100 right posteriors."""
    bound = norm.isf(0.5 * _FALSE_ALARMS / (2.0 * len(errors.shift)))
    words = []
    shift = _worst(errors.shift, bound * errors.shift_error, _SMALL_SHIFT)
    if shift:
        words.append(f"its mean is expected to be {abs(shift):.2f} posterior standard deviations off")
    off = _worst(errors.spread - 1.0, bound * errors.spread_error, _SMALL_STRETCH)
    if off:
        words.append(f"the true spread is expected to be {1.0 + off:.2f} times its own")
    return " and ".join(words)


def _worst(errors, bounds, small):
    """Return the most significant of the errors (p,) that are not small; zero where there are none."""
    is_off = np.abs(errors) > np.maximum(bounds, small)
    errors, bounds = errors[is_off], bounds[is_off]
    return errors[np.argmin(bounds / np.abs(errors))] if errors.size else 0.0


def _main_directions(moves, weights):
    """Return moves (m, k') along their first principal components, scaled."""
    scale = np.sqrt(weights @ moves**2)
    moves = moves[:, scale > 0.0] / scale[scale > 0.0]
    most = int(1.0 / (weights**2).sum()) // _CASES_A_SLOPE
    if not moves.size or most == 0:
        return np.zeros((len(moves), 0))
    _, values, right = np.linalg.svd((moves - weights @ moves) * np.sqrt(weights)[:, None], full_matrices=False)
    kept = values > 1e-6 * max(values[0], 1e-300)
    return moves @ right[kept][:most].T


def _intercepts(design, targets, weights):
    """Return the intercepts (p,) of weighted regressions, and their standard errors."""
    root = np.sqrt(weights)[:, None]
    inverse = np.linalg.pinv(design * root)  # (k, m)
    residuals = (targets - design @ (inverse @ (targets * root))) * root
    leverage = np.minimum(np.einsum("km,mk->m", inverse, design * root), 0.99)
    along = inverse[0] / (1.0 - leverage)
    return inverse[0] @ (targets * root), np.sqrt(along**2 @ residuals**2)
