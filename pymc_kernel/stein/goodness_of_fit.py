"""Tests of draws against the distribution whose scores are given, for chains and for independent draws."""

from dataclasses import dataclass, field

import numpy as np

from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.kernels.points import check_whole
from pymc_kernel.linalg import pivoted_cholesky
from pymc_kernel.parallel import one_blas_thread, over_row_blocks
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import as_chains, autocorrelation, choose_thinning, merge_repeats, thin_chains

_INDEPENDENT = 0.5  # probability that the sign of the wild bootstrap flips from one draw to the next: independent signs
_CORRELATED = 0.1  # the same for chains (Chwialkowski et al. 2016): signs that hold for ten draws
_NO_CORRELATION = 0.05  # autocorrelation of draws that count as independent, beyond two standard errors


@dataclass(frozen=True)
class KSDTest:
    """The result of a test of draws.

    Attributes
    ----------
    ksd : float
        The discrepancy (the root of the V-statistic), in standardized coordinates.
    p_value : float
        (1 + replicates at least as large) / (1 + replicates). If each coordinate is tested as well: the smaller one of
        the joint test and of the coordinate that is furthest off, corrected for the choice.
    null : ndarray (replicates,)
        Discrepancies of the same draws with random signs: if the draws are right, its null distribution.
    null_quantiles : ndarray (2,)
        5 % and 95 % of ``null``. They grow with the errors of the draws: to compare sizes, take ``normal_ksd``.
    normal_ksd : float
        Root mean square discrepancy of as many independent draws of a normal distribution.
    shares : ndarray (d,)
        Share of each coordinate in the square of ``ksd``; they sum to one.
    margins : ndarray (d,) or None
        Deviation of each coordinate by itself, squared, in units of standard errors; None unless asked for.
    margin_p_values : ndarray (d,) or None
        Of each coordinate by itself, corrected for all tests: if the draws are right, the chance that any of them,
        ``p_value`` included, is below a level is that level.
    margin_null : ndarray (d, replicates) or None
        As ``null``, of ``margins``.
    num_draws : int
        Different draws after thinning.
    thin : int
    flip_probability : float
        Of the signs of the wild bootstrap; one half is for independent draws.
    """

    ksd: float
    p_value: float
    null: np.ndarray = field(repr=False)
    null_quantiles: np.ndarray
    normal_ksd: float
    shares: np.ndarray
    margins: np.ndarray | None
    margin_p_values: np.ndarray | None
    margin_null: np.ndarray | None = field(repr=False)
    num_draws: int
    thin: int
    flip_probability: float


def sign_processes(
    rng: np.random.Generator, lengths: tuple[int, ...], num_replicates: int, flip_probability: float
) -> np.ndarray:
    """Return signs (n, replicates) of the wild bootstrap, int8: a process for each chain and replicate.

    All are independent; each starts at random and changes sign from draw to draw with ``flip_probability``.
    """
    chains = []
    for length in lengths:
        uniforms = rng.random((length, num_replicates), dtype=np.float32)
        signs = np.where(uniforms < flip_probability, np.int8(-1), np.int8(1))
        signs[0] = np.where(uniforms[0] < 0.5, 1, -1)
        chains.append(np.cumprod(signs, axis=0, dtype=np.int8))
    return np.concatenate(chains)


def check_settings(num_replicates, thin, flip_probability) -> None:
    """Raise where the settings that all bootstrap tests share are out of range."""
    check_whole(num_replicates=num_replicates)
    if thin != "auto" and not (isinstance(thin, int | np.integer) and thin >= 1):
        raise ValueError(f'thin must be "auto" or a whole number >= 1, got {thin!r}.')
    if flip_probability != "auto" and not (np.isscalar(flip_probability) and 0.0 < flip_probability <= 0.5):
        raise ValueError(f'flip_probability must be "auto" or in (0, 0.5], got {flip_probability!r}.')


def choose_flip_probability(draws: np.ndarray, lengths: tuple[int, ...], lag: int = 1, weights=None) -> float:
    """Return 1/2 where no coordinate's autocorrelation at the lag exceeds 0.05 by two standard errors, else 0.1.

    The latter is what Chwialkowski et al. (2016) recommend for thinned chains.
    """
    correlation = autocorrelation(draws, lengths, weights)(lag)
    return _INDEPENDENT if correlation < _NO_CORRELATION + 2.0 / np.sqrt(len(draws)) else _CORRELATED


@one_blas_thread
def ksd_test(
    draws, scores, kernel: RadialKernel | None = None, *, num_replicates: int = 1000, thin: int | str = "auto",
    flip_probability: float | str = "auto", max_draws: int | None = None, coordinates: bool = False,
    how: str = "straighten", weights=None, rng: np.random.Generator | None = None,
) -> KSDTest:  # fmt: skip
    """Test whether draws come from the distribution whose scores are given.

    Parameters
    ----------
    draws, scores : array_like (n, d) or (chain, draw, d)
        Each chain has a row of its own, with its draws in order. A draw that is repeated, as after importance
        resampling, counts as one with a weight.
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
        In standardized coordinates. By default the inverse multiquadric with length scale one.
    num_replicates : int
        Of the wild bootstrap; the p-value is a multiple of 1 / (num_replicates + 1).
    thin : int or "auto"
        One in ``thin`` different draws is kept. "auto": so that no coordinate's autocorrelation is a quarter or more.
    flip_probability : float in (0, 0.5] or "auto"
        Of the bootstrap's signs. One half is for independent draws; dependent ones need less, "auto" takes 0.1.
    max_draws : int, optional
        At most as many draws are kept by ``thin="auto"``.
    coordinates : bool
        Whether each coordinate is tested by itself as well, with the kernel on it alone. This finds errors of single
        coordinates in any dimension, where the joint test loses its power.
    how : {"straighten", "whiten", "scale", "none"}
        Coordinates, see :func:`standardize`.
    weights : array_like (n,) or (chain, draw), optional
        If the scores are those of a density q instead of the target p: q / p at the draws, up to a constant. Then the
        draws are tested against p whatever q is, with less power the further q is from p.
    rng : numpy.random.Generator, optional
        For the signs; seed 0 by default, so that the same draws have the same p-value.

    Notes
    -----
    O(n^2 (d + R)) time, no array larger than n x R numbers. The test does not detect that a chain has missed a mode, or
    has its weight wrong: scores do not depend on the weights of separated modes. At large n it detects every small
    bias: compare the size of ``ksd`` with ``normal_ksd``.

    All tests share the signs of the wild bootstrap, and p-values are corrected by Westfall and Young's method, which
    uses the dependence between the tests: the joint one and the largest of the coordinates' are two tests, however many
    coordinates there are. Chwialkowski, Strathmann and Gretton (2016), with Leucht and Neumann's wild bootstrap for
    chains. With weights, Fisher and Oates (2023), Gradient-free kernel Stein discrepancy: the mean of (q / p) A_q f
    under p is that of A_q f under q, which is zero.
    """
    check_settings(num_replicates, thin, flip_probability)
    rng = np.random.default_rng(0) if rng is None else rng
    chains = merge_repeats(as_chains(draws, scores, weights))
    if thin == "auto":
        thin = choose_thinning(chains.draws, chains.lengths, weights=chains.weights)
        thin = thin if max_draws is None else max(thin, -(-len(chains.draws) // max_draws))
    if flip_probability == "auto":
        flip_probability = choose_flip_probability(chains.draws, chains.lengths, int(thin), chains.weights)
    chains = thin_chains(chains, int(thin))
    stein = prepared(chains, kernel, how, rng)
    signs = sign_processes(rng, chains.lengths, num_replicates, flip_probability)
    signs = np.column_stack([np.ones(len(signs), dtype=signs.dtype), signs])  # first the draws as they are
    joint = np.maximum(quadratic_forms(stein, signs, chains.weights), 0.0)
    margins = margin_forms(stein, signs, chains.weights) if coordinates else np.empty((0, len(joint)))
    p_value, margin_p_values = corrected(joint, margins)
    parts, n = tiles.coordinate_sums(stein, chains.weights), len(chains.draws)
    unit = tiles.diagonal(stein._replace(scores=np.ones_like(stein.scores)))[0].sum()
    null = np.sqrt(joint[1:]) / n
    return KSDTest(
        ksd=float(np.sqrt(joint[0]) / n),
        p_value=p_value,
        null=null,
        null_quantiles=np.quantile(null, [0.05, 0.95]),
        normal_ksd=float(np.sqrt(unit * (chains.weights**2).sum()) / n),
        shares=parts / parts.sum(),
        margins=margins[:, 0] if coordinates else None,
        margin_p_values=margin_p_values if coordinates else None,
        margin_null=margins[:, 1:] if coordinates else None,
        num_draws=n,
        thin=int(thin),
        flip_probability=float(flip_probability),
    )


def corrected(joint: np.ndarray, margins: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the p-value of all tests together, and those of the margins (d,), corrected for all tests.

    ``joint`` (1 + R,) and ``margins`` (d, 1 + R) hold observed values, then replicates. Values of different margins are
    compared after a cube root, which makes sums of squares nearly normal (Wilson and Hilferty 1931).
    """
    smallest = _num_as_large(joint, joint)
    if not len(margins):
        return smallest[0] / len(joint), np.empty(0)
    roots = np.cbrt(margins)
    roots -= roots.mean(axis=1, keepdims=True)
    spread = roots.std(axis=1, keepdims=True)
    roots /= np.where(spread > 0.0, spread, 1.0)
    largest = roots.max(axis=0)
    smallest = np.minimum(smallest, _num_as_large(largest, largest))
    own = _num_as_large(roots[:, 0], largest)
    return float((smallest <= smallest[0]).mean()), (smallest <= own[:, None]).mean(axis=1)


def _num_as_large(values, among):
    """Return how many of ``among`` are at least as large as each value."""
    return len(among) - np.searchsorted(np.sort(among), values, side="left")


_ROWS = 512  # of a block of the kernel
_COLUMNS = 2048  # of the same block: 8 MB
_REMAINDER = 1e-4  # of the diagonal, and so at most of a form's mean under random signs
# Of the trace: with a third of it small sets of right draws are rejected too often, by the margins alone; without the
# second moments, wrong draws too seldom.
_RIDGE = 0.3


def quadratic_forms(stein: tiles.Stein, signs: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return w' H w (R,) for each column w of ``signs`` (n, R), of the Stein kernel H; times weights (n,).

    One pass over the kernel on all cores, in blocks of 512 by 2048, above the diagonal only; O(n^2 (d + R)) time, and
    a copy of the signs of one block of columns in memory for each core. The same for any number of cores.
    """
    n, num_signs = signs.shape
    weights = np.ones(n) if weights is None else weights
    num_blocks = -(-n // _ROWS)
    forms = np.zeros((num_blocks, num_signs))

    def blocks(start, stop):
        buffer = np.empty(_ROWS * _COLUMNS)
        for turn in range(start, stop):
            b = tiles.from_both_ends(turn, num_blocks)
            rows = slice(b * _ROWS, min((b + 1) * _ROWS, n))
            height = rows.stop - rows.start
            some = stein._replace(points=stein.points[rows], scores=stein.scores[rows])
            product = np.zeros((height, num_signs))
            for first in range(rows.start, n, _COLUMNS):
                columns = slice(first, min(first + _COLUMNS, n))
                part = buffer[: height * (columns.stop - first)].reshape(height, -1)
                tiles.fill_rows(some, first // tiles.TILE, 0, height, part)
                if first == rows.start:
                    part[:, :height] *= 0.5  # the diagonal block holds both halves
                product += part @ (weights[columns, None] * signs[columns])
            forms[b] = 2.0 * np.einsum("ir,ir->r", weights[rows, None] * signs[rows], product)

    over_row_blocks(blocks, num_blocks, _ROWS * n * (stein.points.shape[1] + num_signs) / 2)
    return forms.sum(axis=0)


def margin_forms(stein: tiles.Stein, signs: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the deviation of each coordinate by itself, (d, R), for each column of ``signs`` (n, R) and weights (n,).

    It is n m' (C + r tr(C) I)^-1 m for the mean m of the Stein kernel's features, signed, and their second moments C:
    in units of standard errors, so that features of large variance do not hide errors of the others. Features are a
    pivoted Cholesky factor of the kernel of the coordinate alone, whose rank is a few dozen: O(n d rank (rank + R))
    time.
    """
    n = len(signs)
    weights, signs = np.ones(n) if weights is None else weights, signs.astype(float)
    forms = np.empty((stein.points.shape[1], signs.shape[1]))
    for k, out in enumerate(forms):
        one = tiles.margin(stein, k)

        def columns(chosen, one=one):
            return tiles.fill(one, chosen, 0, np.empty((len(chosen), n))).T

        diagonal = tiles.diagonal(one)[:, 0]
        features = weights[:, None] * pivoted_cholesky(diagonal, columns, n, _REMAINDER * diagonal)[0]
        second = features.T @ features / n
        second[np.diag_indices_from(second)] += _RIDGE * np.trace(second)
        sums = features.T @ signs
        out[:] = (sums * np.linalg.solve(second, sums)).sum(axis=0) / n
    return forms
