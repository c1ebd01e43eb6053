"""Uses of draws and scores beyond a test: thinning, expectations, and two runs compared."""

from collections.abc import Callable, Sequence
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel import stein
from pymc_kernel.kernels import Kernel
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.reports.model_draws import (
    as_chains_and_draws,
    choose,
    document_arguments,
    list_sample_dims,
    read_draws,
)
from pymc_kernel.plugin.reports.surrogate_scores import ADVICE
from pymc_kernel.plugin.warn import warn_user

__all__ = ["expectation", "mmd_test", "stein_thin"]


@document_arguments
def stein_thin(
    data: Any,
    num_points: int,
    *,
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: dict[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    score: Callable[[np.ndarray], np.ndarray] | str | None = None,
    kernel: Kernel | None = None,
) -> xr.DataTree:
    """Return a DataTree with the few draws that together fit the model's posterior best.

    Greedy minimization of the kernel Stein discrepancy: leaves out burn-in, and corrects for repeated draws and bias.

    Parameters
    ----------
    {arguments}
        The draws are chosen by these variables; the result has all variables.
    num_points : int
        Draws to choose; one may be chosen more than once.
    kernel : radial kernel of ``pymc_kernel.kernels``, optional

    Returns
    -------
    xarray.DataTree
        The group with one chain of ``num_points`` draws, in the order of choice, with coordinates ``source_chain`` and
        ``source_draw``; the statistics of the same draws; the groups of data as they were. With ``score="surrogate"``
        its attributes hold the held-out error of that score, as ``stein_score_error``, and a warning says where it is
        too large.
    """
    part = read_draws(data, var_names, filter_vars, group, coords, sample_dims, model, score)
    chosen = stein.stein_thin(part.draws, part.scores, num_points, kernel)
    if part.learned is not None and part.learned.trouble:
        warn_user(f"the choice should not be trusted: {part.learned.trouble}. {ADVICE}")
    chains, draws = np.divmod(chosen, part.draws.shape[1])
    sample_dims = list_sample_dims(sample_dims)
    data = az.convert_to_datatree(data)
    groups = {}
    for name in data.children:
        dataset = data[name].to_dataset()
        if name in (group, "sample_stats"):
            dataset = _take(as_chains_and_draws(dataset, sample_dims), chains, part.every * draws)
            dataset.attrs |= {} if part.learned is None else part.learned.attributes("stein_")
        elif set(sample_dims) <= set(dataset.dims):
            continue
        groups[name] = dataset
    return xr.DataTree.from_dict(groups)


def _take(dataset, chains, draws):
    source = {"source_chain": ("draw", dataset["chain"].values[chains])} if "chain" in dataset.coords else {}
    source |= {"source_draw": ("draw", dataset["draw"].values[draws])} if "draw" in dataset.coords else {}
    taken = dataset.isel(chain=xr.DataArray(chains, dims="point"), draw=xr.DataArray(draws, dims="point"))
    taken = taken.drop_vars(["chain", "draw"], errors="ignore").rename(point="draw")
    taken = taken.assign_coords(draw=np.arange(len(chains)), **source)
    return taken.expand_dims(chain=[0]).transpose("chain", "draw", ...)


@document_arguments
def expectation(
    data: Any,
    function: Callable[[xr.Dataset], xr.Dataset] | None = None,
    *,
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: dict[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    score: Callable[[np.ndarray], np.ndarray] | str | None = None,
    kernel: Kernel | None = None,
    num_basis: int = 500,
) -> xr.Dataset:
    """Return posterior expectations with less variance than means of the draws, by control functionals.

    Parameters
    ----------
    {arguments}
    function : callable, optional
        From the chosen variables, a Dataset with the sample dimensions, to a Dataset whose means are wanted. By default
        the variables themselves.
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
    num_basis : int
        Points that the control is built on; O(n m^2) time.

    Returns
    -------
    xarray.Dataset
        With the dimension ``estimate``: "value", "mean" (of the draws, for comparison) and "variance_ratio", the
        variance that the control leaves over that of the draws. Best in few dimensions and for smooth functions. An
        error of a surrogate does not bias the values, but reduces less of the variance.
    """
    part = read_draws(data, var_names, filter_vars, group, coords, sample_dims, model, score)
    dataset = as_chains_and_draws(part.dataset, list_sample_dims(sample_dims)).isel(draw=slice(None, None, part.every))
    dataset = dataset if function is None else function(dataset)
    columns, layout = [], []
    for name, one in dataset.data_vars.items():
        values = one.transpose("chain", "draw", ...)
        columns.append(values.values.reshape(values.sizes["chain"] * values.sizes["draw"], -1).astype(float))
        layout.append((name, values.isel(chain=0, draw=0, drop=True)))
    result = stein.controlled_expectation(
        np.concatenate(columns, axis=1), part.draws, part.scores, kernel, num_basis=num_basis, weights=part.weights
    )
    out, start = {}, 0
    for name, like in layout:
        stop = start + like.size
        parts = [a[start:stop].reshape(like.shape) for a in (result.value, result.mean, result.variance_ratio)]
        arrays = [like.astype(float).copy(data=p) for p in parts]
        out[name] = xr.concat(arrays, xr.DataArray(["value", "mean", "variance_ratio"], dims="estimate"))
        start = stop
    attrs = {} if part.learned is None else part.learned.attributes()
    return xr.Dataset(out, attrs=attrs).assign_coords(estimate=["value", "mean", "variance_ratio"])


def mmd_test(
    data: Any,
    trusted: Any,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: dict[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    kernel: Kernel | None = None,
    num_replicates: int = 1000,
    thin: int | str = "auto",
    random_seed: RandomSeed = None,
) -> stein.MMDTest:
    """Test whether two runs have the same distribution; for models that have no score.

    Parameters
    ----------
    data, trusted : DataTree or convertible
        Both with the chosen variables; each variable is divided by its standard deviation in ``trusted``.
    var_names, filter_vars, group, coords, sample_dims
        As everywhere in ArviZ.
    kernel : kernel of ``pymc_kernel.kernels``, optional
        Gaussian with the median distance by default.
    num_replicates, thin, random_seed
        As in :func:`ksd_test`.
    """
    samples = []
    sample_dims = list_sample_dims(sample_dims)
    for one in (data, trusted):
        dataset = choose(az.convert_to_datatree(one), var_names, filter_vars, group, coords, sample_dims)
        dataset = as_chains_and_draws(dataset, sample_dims)
        names = sorted(dataset.data_vars)
        sizes = dataset.sizes["chain"], dataset.sizes["draw"]
        flat = [dataset[v].transpose("chain", "draw", ...).values.reshape(*sizes, -1) for v in names]
        samples.append((names, np.concatenate(flat, axis=2).astype(float)))
    (names, first), (others, second) = samples
    if names != others or first.shape[2] != second.shape[2]:
        raise ValueError(f"both must have the same variables, got {', '.join(names)} and {', '.join(others)}.")
    spread = second.std(axis=(0, 1))
    spread = np.where(spread > 0.0, spread, 1.0)
    rng = np.random.default_rng(0 if random_seed is None else random_seed)
    return stein.mmd_test(first / spread, second / spread, kernel, num_replicates=num_replicates, thin=thin, rng=rng)
