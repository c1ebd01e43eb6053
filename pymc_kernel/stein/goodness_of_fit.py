"""Tests of draws against the distribution whose scores are given, for chains and for independent draws.

Imports NumPy, SciPy and the lower floors only.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats

from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import (
    as_chains,
    autocorrelation,
    checked_weights,
    choose_thinning,
    standardize,
    thin_chains,
)
from pymc_kernel.stein.forms import coordinate_forms, coordinate_sums, quadratic_forms, weighted_forms

__all__ = ["KSDTest", "holm", "ksd_test", "sign_processes"]

_ROWS = 512  # of a block of the kernel
# Of products of coordinates' kernels with signs, a tenth of a second: above, replicates are in single precision. A
# thousand of them tell a quantile to some percent, and six digits are more than enough.
_SINGLE_ABOVE = 4e9
_INDEPENDENT = 0.5  # probability that the sign of the wild bootstrap flips from one draw to the next: independent signs
_CORRELATED = 0.1  # the same for chains (Chwialkowski et al. 2014): signs that hold for ten draws
_NO_CORRELATION = 0.1  # lag-one autocorrelation of draws that count as independent, beyond its standard error


@dataclass(frozen=True)
class KSDTest:
    """The result of a test of draws.

    Attributes
    ----------
    ksd : float
        The discrepancy (the root of the V-statistic), in standardized coordinates.
    p_value : float
        (1 + replicates at least as large) / (1 + replicates), or from the Gamma approximation.
    null : ndarray (replicates,)
        Discrepancies that draws from the target would have had; empty for the Gamma approximation.
    null_quantiles : ndarray (2,)
        5 % and 95 % of the null distribution: the size to compare ``ksd`` with.
    shares : ndarray (d,)
        What each coordinate contributes, of one in all.
    share_p_values : ndarray (d,) or None
        Of each coordinate's own test, where asked for.
    share_null : ndarray (d, replicates) or None
        As ``null``, of each coordinate.
    num_draws : int
        After thinning.
    thin : int
    flip_probability : float
        Of the signs of the wild bootstrap; one half is for independent draws.
    """

    ksd: float
    p_value: float
    null: np.ndarray = field(repr=False)
    null_quantiles: np.ndarray
    shares: np.ndarray
    share_p_values: np.ndarray | None
    share_null: np.ndarray | None = field(repr=False)
    num_draws: int
    thin: int
    flip_probability: float


@compiled
def _run_signs(uniforms, flip, out):
    """Turn rows of uniforms (n, R) into sign processes that change sign with probability ``flip``."""
    n, replicates = out.shape
    for r in range(replicates):
        out[0, r] = 1 if uniforms[0, r] < 0.5 else -1
    for t in range(1, n):
        for r in range(replicates):
            out[t, r] = -out[t - 1, r] if uniforms[t, r] < flip else out[t - 1, r]


def sign_processes(
    rng: np.random.Generator, lengths: tuple[int, ...], num_replicates: int, flip_probability: float
) -> np.ndarray:
    """Return signs (n, replicates) of the wild bootstrap, int8: a process for each chain and replicate.

    All are independent; each starts at random and changes sign from draw to draw with ``flip_probability``.
    """
    out = np.empty((sum(lengths), num_replicates), dtype=np.int8)
    start = 0
    for length in lengths:
        _run_signs(
            rng.random((length, num_replicates), dtype=np.float32), flip_probability, out[start : start + length]
        )
        start += length
    return out


def _gamma_null(stein: tiles.Stein):
    """Return the Gamma distribution with mean and variance of the sum over pairs under independent signs.

    For a degenerate kernel the sum divided by n is a weighted sum of chi squares; its mean is the trace of H / n, its
    variance twice the sum of squares off the diagonal, over n^2.
    """
    n = len(stein.points)
    diagonal = tiles.diagonal(stein).sum(axis=1)
    trace = diagonal.sum()
    squares = 0.0
    block = np.empty((_ROWS, n))
    for start in range(0, n, _ROWS):
        part = tiles.fill(stein, slice(start, min(start + _ROWS, n)), 0, block[: min(_ROWS, n - start)])
        squares += (part**2).sum()
    variance = 2.0 * (squares - (diagonal**2).sum())
    if not variance > 0.0:
        raise ValueError(
            "the kernel is zero for all pairs of draws, so that the Gamma null has no spread: take a larger "
            'length_scale, more draws, or null="bootstrap".'
        )
    return stats.gamma(trace**2 / variance, scale=variance / trace)


def check_settings(num_replicates, thin, flip_probability) -> None:
    """Raise where the settings that all bootstrap tests share are out of range."""
    if not (isinstance(num_replicates, int | np.integer) and num_replicates >= 1):
        raise ValueError(f"num_replicates must be a whole number >= 1, got {num_replicates!r}.")
    if thin != "auto" and not (isinstance(thin, int | np.integer) and thin >= 1):
        raise ValueError(f'thin must be "auto" or a whole number >= 1, got {thin!r}.')
    if flip_probability != "auto" and not (np.isscalar(flip_probability) and 0.0 < flip_probability <= 0.5):
        raise ValueError(f'flip_probability must be "auto" or in (0, 0.5], got {flip_probability!r}.')


def choose_flip_probability(draws: np.ndarray, lengths: tuple[int, ...]) -> float:
    """Return 1/2 where no coordinate's lag-one autocorrelation is above 0.1 and its noise, else 0.1.

    The latter is what Chwialkowski et al. (2016) recommend after thinning to an autocorrelation below one half.
    """
    correlation = autocorrelation(draws, lengths)(1)
    return _INDEPENDENT if correlation < _NO_CORRELATION + 2.0 / np.sqrt(len(draws)) else _CORRELATED


def prepare_chains(draws, scores, thin, flip_probability, how):
    """Return thinned and standardized chains, the thinning, and the flip probability; arguments as in the test."""
    chains = as_chains(draws, scores)
    if thin == "auto":
        thin = choose_thinning(chains.draws, chains.lengths)
    chains = thin_chains(chains, int(thin))
    if flip_probability == "auto":
        flip_probability = choose_flip_probability(chains.draws, chains.lengths)
    draws, scores = standardize(chains.draws, chains.scores, how)
    return chains._replace(draws=draws, scores=scores), int(thin), float(flip_probability)


@one_blas_thread
def ksd_test(
    draws,
    scores,
    kernel: RadialKernel | None = None,
    *,
    num_replicates: int = 1000,
    thin: int | str = "auto",
    flip_probability: float | str = "auto",
    null: str = "bootstrap",
    coordinates: bool = False,
    how: str = "straighten",
    weights=None,
    rng: np.random.Generator | None = None,
) -> KSDTest:
    """Test whether draws come from the distribution whose scores are given.

    Parameters
    ----------
    draws, scores : array_like (n, d) or (chain, draw, d)
        Chains are in their own rows; the draws of each in their order.
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
        In standardized coordinates. By default the inverse multiquadric with length scale one.
    num_replicates : int
        Of the wild bootstrap; the p-value is a multiple of one over one more.
    thin : int or "auto"
        One in ``thin`` draws is kept. "auto": so that no coordinate's autocorrelation is one half or more.
    flip_probability : float in (0, 0.5] or "auto"
        Of the bootstrap's signs. One half is for independent draws; dependent ones need less, "auto" takes 0.1.
    null : {"bootstrap", "gamma"}
        "gamma" fits a Gamma distribution to two moments: fast, for independent draws only.
    coordinates : bool
        Whether each coordinate is tested by itself as well; costs d times the bootstrap.
    how : {"straighten", "whiten", "scale", "none"}
        Coordinates, see :func:`standardize`.
    weights : array_like (n,) or (chain, draw), optional
        Where the scores are those of another density q than that of the target p: q / p at the draws, up to a constant.
        Then the draws are tested against p whatever q is, with less power the further q is from p.
    rng : numpy.random.Generator, optional
        For the signs; seed 0 by default, so that the same draws have the same p-value.

    Returns
    -------
    KSDTest

    Notes
    -----
    O(n^2 (d + R)) time, no array larger than n x R bytes. The test does not detect that a chain has missed a mode, or
    has its weight wrong: scores do not depend on the weights of separated modes. At large n it detects every small
    bias: compare the size of ``ksd`` with ``null_quantiles``.

    References
    ----------
    Chwialkowski, Strathmann and Gretton (2016), with Leucht and Neumann's wild bootstrap for chains. With weights,
    Fisher and Oates (2023), Gradient-free kernel Stein discrepancy: the mean of (q / p) A_q f under p is that of A_q f
    under q, which is zero.
    """
    if null not in ("bootstrap", "gamma"):
        raise ValueError(f'null must be "bootstrap" or "gamma", got {null!r}.')
    check_settings(num_replicates, thin, flip_probability)
    if weights is not None and null == "gamma":
        raise ValueError('null="gamma" takes no weights: use the bootstrap.')
    rng = np.random.default_rng(0) if rng is None else rng
    if weights is not None:
        lengths = as_chains(draws, scores).lengths
        weights = checked_weights(weights, lengths)
    chains, thin, flip_probability = prepare_chains(draws, scores, thin, flip_probability, how)
    if weights is not None:
        weights = np.concatenate([part[::thin] for part in np.split(weights, np.cumsum(lengths)[:-1])])
        weights /= weights.mean()
    stein, _ = prepared(chains.draws, chains.scores, kernel, "none", rng)
    n = len(chains.draws)
    if null == "gamma":
        if flip_probability != _INDEPENDENT:
            raise ValueError('null="gamma" is for independent draws, but these are correlated: use the bootstrap.')
        result = _gamma_test(stein)
    else:
        signs = sign_processes(rng, chains.lengths, num_replicates, flip_probability)
        result = _bootstrap_test(stein, signs, weights, coordinates or weights is not None)
    return KSDTest(
        ksd=float(np.sqrt(max(result.total, 0.0)) / n),
        p_value=result.p_value,
        null=np.sqrt(np.maximum(result.forms, 0.0)) / n,
        null_quantiles=np.sqrt(result.quantiles) / n,
        shares=result.parts / result.parts.sum(),
        share_p_values=result.share_p_values,
        share_null=None if result.part_forms is None else np.sqrt(np.maximum(result.part_forms, 0.0)) / n,
        num_draws=n,
        thin=thin,
        flip_probability=flip_probability,
    )


class _Sums(NamedTuple):
    """Sums over all pairs of n draws, without signs and under the null hypothesis."""

    total: float
    parts: np.ndarray  # (d,), of each coordinate
    p_value: float
    quantiles: np.ndarray  # (2,), 5 % and 95 %
    forms: np.ndarray  # (R,), of the bootstrap
    part_forms: np.ndarray | None = None  # (d, R)
    share_p_values: np.ndarray | None = None


def _gamma_test(stein):
    distribution, parts = _gamma_null(stein), coordinate_sums(stein)
    total = parts.sum()
    return _Sums(total, parts, float(distribution.sf(total)), distribution.ppf([0.05, 0.95]), np.empty(0))


def _bootstrap_test(stein, signs, weights, coordinates):
    part_forms, share_p_values = None, None
    if coordinates:
        dtype = np.float32 if stein.points.size * signs.size > _SINGLE_ABOVE else float
        if weights is None:
            parts, part_forms = coordinate_forms(stein, signs, dtype)
        else:
            parts, part_forms = weighted_forms(stein, weights, signs, dtype)
        total, forms = parts.sum(), part_forms.sum(axis=0)
        share_p_values = _p_values(parts[:, None], part_forms)
    else:
        total, forms = quadratic_forms(stein, signs)
        parts = coordinate_sums(stein)
    p_value = float(_p_values(np.array([[total]]), forms[None])[0])
    quantiles = np.quantile(np.maximum(forms, 0.0), [0.05, 0.95])
    return _Sums(total, parts, p_value, quantiles, forms, part_forms, share_p_values)


def holm(p_values) -> np.ndarray:
    """Return p-values (m,) corrected for their number by Holm's method; NaN ones are not counted, and stay.

    The chance that any is below a level is at most that level where all hypotheses hold, however they depend.
    """
    p_values = np.asarray(p_values, dtype=float)
    out = np.full(p_values.shape, np.nan)
    order = np.argsort(p_values, kind="stable")[: np.isfinite(p_values).sum()]  # NaN comes last
    factors = np.arange(order.size, 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    return out


def _p_values(observed, replicates):
    return (1 + (replicates >= observed).sum(axis=1)) / (1 + replicates.shape[1])
