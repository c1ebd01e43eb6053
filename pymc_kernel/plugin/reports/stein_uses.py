"""Uses of draws and scores beyond a test: thinning, expectations, and two runs compared."""

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
import xarray as xr

from pymc_kernel import stein
from pymc_kernel.kernels import Kernel
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.reports.model_draws import Scored, Selected, Selection, document_arguments, read_draws, stacked
from pymc_kernel.plugin.reports.surrogate_scores import ADVICE
from pymc_kernel.plugin.warn import warn_user


@document_arguments
def stein_thin(data: Any, num_points: int, *, kernel: Kernel | None = None, **selection: Unpack[Scored]) -> xr.DataTree:
    """Return a DataTree with the few draws that together fit the model's posterior best.

    Greedy minimization of the kernel Stein discrepancy leaves out burn-in and corrects for repeated draws and bias. In
    more dimensions the few spread less: 100 of 4,000 independent normal draws have standard deviations 1, 6 and 16 %
    too small in one, three and ten dimensions.

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
        ``source_draw``; the statistics of the same draws; the groups of data, unchanged. With ``score="surrogate"`` its
        attributes hold the held-out error of that score, as ``stein_score_error``, and a warning says if it is too
        large.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> few = pk.stein_thin(data, 40, model=model)
    >>> few["posterior"].sizes["draw"], bool(abs(few["posterior"]["x"].mean()) < 0.1)
    (40, True)
    """
    selected = Selection(data, **selection)
    part = read_draws(selected)
    chosen = stein.stein_thin(part.draws, part.scores, num_points, kernel)
    if part.learned is not None and part.learned.trouble:
        warn_user(f"the choice should not be trusted: {part.learned.trouble}. {ADVICE}")
    chains, draws = np.divmod(chosen, part.draws.shape[1])
    groups = {}
    for name, node in selected.data.children.items():
        dataset = node.to_dataset()
        if set(selected.sample_dims) <= set(dataset.dims):  # sample_stats of a variational fit are empty
            if name not in (selected.group, "sample_stats"):
                continue
            dataset = _take(selected.as_chains(dataset), chains, part.every * draws)
            dataset.attrs |= {} if part.learned is None else part.learned.attributes("stein_")
        groups[name] = dataset
    return xr.DataTree.from_dict(groups)


def _take(dataset, chains, draws):
    taken = dataset.isel(chain=xr.DataArray(chains, dims="point"), draw=xr.DataArray(draws, dims="point"))
    taken = taken.rename({name: f"source_{name}" for name in ("chain", "draw") if name in taken.coords})
    taken = taken.rename(point="draw").assign_coords(draw=np.arange(len(chains)))
    return taken.expand_dims(chain=[0]).transpose("chain", "draw", ...)


@document_arguments
def expectation(
    data: Any,
    function: Callable[[xr.Dataset], xr.Dataset] | None = None,
    *,
    kernel: Kernel | None = None,
    num_basis: int = 500,
    **selection: Unpack[Scored],
) -> xr.Dataset:
    """Return posterior expectations with less variance than means of the draws, by control functionals.

    Parameters
    ----------
    {arguments}
    function : callable, optional
        Maps the chosen variables, a Dataset with the sample dimensions, to a Dataset whose means are wanted. By default
        the variables themselves.
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
    num_basis : int
        Points m that the control functional is built on; O(n m^2) time.

    Returns
    -------
    xarray.Dataset
        With the dimension ``estimate``: "value", "mean" (of the draws, for comparison) and "variance_ratio", the
        remaining variance over that of the draws. Best in few dimensions and for smooth functions. An error of a
        surrogate does not bias the values, but the variance is reduced less.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 3.0, 1.0)
    >>> data = az.from_dict({"posterior": {"x": np.random.default_rng(1).normal(3.0, 1.0, (2, 100))}})
    >>> means = pk.expectation(data, model=model)
    """
    selected = Selection(data, **selection)
    part = read_draws(selected)
    dataset = selected.as_chains(part.dataset).isel(draw=slice(None, None, part.every))
    dataset = dataset if function is None else function(dataset)
    values, columns = stacked(dataset, list(dataset.data_vars))
    result = stein.controlled_expectation(
        values, part.draws, part.scores, kernel, num_basis=num_basis, weights=part.weights
    )
    names = ["value", "mean", "variance_ratio"]
    found = np.array([getattr(result, name) for name in names])
    out = {
        name: xr.DataArray(found[:, own.values], own.coords, ["estimate", *own.dims], attrs=own.attrs)
        for name, own in columns.items()
    }
    attrs = {} if part.learned is None else part.learned.attributes()
    return xr.Dataset(out, attrs=attrs).assign_coords(estimate=names)


def mmd_test(
    data: Any,
    trusted: Any,
    *,
    kernel: Kernel | None = None,
    num_replicates: int = 1000,
    thin: int | str = "auto",
    random_seed: RandomSeed = None,
    **selection: Unpack[Selected],
) -> stein.MMDTest:
    """Test whether two runs have the same distribution; for models without scores.

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

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> trusted = az.from_dict({"posterior": {"x": np.random.default_rng(2).normal(size=(4, 250, 2))}})
    >>> bool(pk.mmd_test(data, trusted).p_value < 0.01)
    True
    """
    both = [Selection(one, **selection) for one in (data, trusted)]
    both = [selected.as_chains(selected.chosen) for selected in both]
    names, others = (sorted(dataset.data_vars) for dataset in both)
    first, second = (stacked(dataset, sorted(dataset.data_vars))[0] for dataset in both)
    if names != others or first.shape[2] != second.shape[2]:
        raise ValueError(f"both must have the same variables, got {', '.join(names)} and {', '.join(others)}.")
    spread = second.std(axis=(0, 1))
    spread = np.where(spread > 0.0, spread, 1.0)
    rng = np.random.default_rng(0 if random_seed is None else random_seed)
    return stein.mmd_test(first / spread, second / spread, kernel, num_replicates=num_replicates, thin=thin, rng=rng)
