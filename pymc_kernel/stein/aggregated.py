"""One test over many length scales, so that none has to be chosen. Imports NumPy and the lower floors only."""

from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.kernels import InverseMultiquadric
from pymc_kernel.kernels.bandwidth import median_distance
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.forms import quadratic_forms
from pymc_kernel.stein.goodness_of_fit import check_settings, prepare_chains, sign_processes, with_observed

__all__ = ["AggregatedKSDTest", "ksd_test_aggregated"]

_POWERS = np.arange(-4.0, 3.0)  # of two, times the median distance


@dataclass(frozen=True)
class AggregatedKSDTest:
    """The result of an aggregated test.

    Attributes
    ----------
    p_value : float
        Of all length scales together.
    length_scales : ndarray (k,)
        In standardized coordinates.
    p_values : ndarray (k,)
        Of each length scale by itself, not corrected for the others.
    ksd : ndarray (k,)
    num_draws, thin, flip_probability
        As in ``KSDTest``.
    """

    p_value: float
    length_scales: np.ndarray
    p_values: np.ndarray
    ksd: np.ndarray
    num_draws: int
    thin: int
    flip_probability: float


@one_blas_thread
def ksd_test_aggregated(
    draws,
    scores,
    kernel=None,
    *,
    length_scales=None,
    num_replicates: int = 1000,
    thin="auto",
    flip_probability="auto",
    how: str = "straighten",
    rng: np.random.Generator | None = None,
) -> AggregatedKSDTest:
    """Test draws with a kernel at several length scales by the smallest p-value, corrected for their number.

    Parameters
    ----------
    draws, scores, num_replicates, thin, flip_probability, how, rng
        As in ``ksd_test``.
    kernel : radial kernel, optional
        The family; its own length scale is not used. The inverse multiquadric by default.
    length_scales : array_like (k,), optional
        In standardized coordinates. By default the median distance times 1/16, 1/8, ..., 4.

    Returns
    -------
    AggregatedKSDTest

    Notes
    -----
    All length scales share the signs of the wild bootstrap. Each replicate gets its own p-value among observed value
    and replicates; the smallest over length scales is compared with those of the replicates (Westfall and Young's
    correction, which uses the dependence between the length scales). k times the cost of one test.

    References
    ----------
    Schrab, Guedj and Gretton (2022), KSD Aggregated goodness-of-fit test: the same idea with weights.
    """
    check_settings(num_replicates, thin, flip_probability)
    rng = np.random.default_rng(0) if rng is None else rng
    kernel = InverseMultiquadric(1.0) if kernel is None else kernel
    chains, thin, flip_probability = prepare_chains(draws, scores, thin, flip_probability, how)
    if length_scales is None:
        length_scales = median_distance(chains.draws, rng) * 2.0**_POWERS
    length_scales = np.atleast_1d(np.asarray(length_scales, dtype=float))
    signs = with_observed(sign_processes(rng, chains.lengths, num_replicates, flip_probability))
    totals = np.empty((len(length_scales), 1 + num_replicates))
    for row, length_scale in zip(totals, length_scales, strict=True):
        stein = tiles.prepare(chains.draws, chains.scores, replace(kernel, length_scale=length_scale))
        row[:] = quadratic_forms(stein, signs, chains.weights)
    # Among observed and replicates, the share that is at least as large as each: its p-value.
    order = np.sort(totals, axis=1)
    p_values = np.stack(
        [1.0 - np.searchsorted(s, row, side="left") / row.size for s, row in zip(order, totals, strict=True)]
    )
    smallest = p_values.min(axis=0)
    n = len(chains.draws)
    return AggregatedKSDTest(
        p_value=float((smallest <= smallest[0]).mean()),
        length_scales=length_scales,
        p_values=p_values[:, 0],
        ksd=np.sqrt(np.maximum(totals[:, 0], 0.0)) / n,
        num_draws=n,
        thin=thin,
        flip_probability=flip_probability,
    )
