"""Likelihoods that are known only through unbiased estimates, as blocks of a model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import Variable
from pytensor.tensor import TensorLike, TensorVariable

from pymc_kernel.plugin.arguments import check_keywords
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp
from pymc_kernel.plugin.samplers.step_methods import offer_to_estimated_model

# Arguments of ``pm.CustomDist`` that a block hands on: PyMC itself ignores in silence what it does not know.
_MORE = {"default_transform", "dims", "initval", "logcdf", "rng", "shape", "support_point", "total_size", "transform"}


def EstimatedLikelihood(
    name: str,
    fn: Callable,
    *params: TensorLike,
    observed: TensorLike,
    random: Callable | None = None,
    pointwise: bool = False,
    reuse_noise: float = 0.0,
    **kwargs: Any,
) -> TensorVariable:
    """Add a likelihood that is known only through unbiased estimates to the model in context.

    Pseudo-marginal sampling (Beaumont 2003; Andrieu and Roberts 2009): if the exponential of what ``fn`` returns has
    the likelihood as its expectation, up to a constant factor, the posterior is exact however noisy the estimate is,
    because accepted estimates are kept. Plain ``pm.sample()`` uses :class:`KernelHMC` for such a model.

    Parameters
    ----------
    name : str
        Of the observed variable.
    fn : callable
        ``fn(rng, *params, observed)`` returns the log of an unbiased estimate, one number. It is given a
        ``numpy.random.Generator`` and must take all its randomness from there; -inf means that the estimate is zero;
        NaN counts as zero too. With ``cores`` > 1 it must be picklable by cloudpickle.
    *params : tensor_like
        The parameters that the likelihood depends on, of any shape.
    observed : array_like
        The data; ``fn`` gets them as an array, and they appear as ``observed_data``.
    random : callable, optional
        ``random(rng, *params, size)`` returns a data set of shape ``size``, that of the data, for
        ``pm.sample_prior_predictive`` and ``pm.sample_posterior_predictive``.
    pointwise : bool
        Whether ``fn`` returns an array of the data's shape: the log of an estimate for each entry, with noise that is
        independent between entries, so that the product of the estimates is unbiased. ``pm.compute_log_likelihood``
        then has an entry for each observation, as ``az.loo`` needs. These are fresh estimates: noise of variance v adds
        about v to the effective number of parameters for each observation, so make v small there.
    reuse_noise : float
        Common random numbers, in [0, 1): the probability that a proposal is evaluated with the random numbers of the
        current point, which are then part of the chain's state; the posterior stays exact. Simulator blocks decide for
        each simulation separately, so most random numbers are kept and some are new. This lowers the noise of the
        acceptance ratio where data simulated with the same numbers change little with the parameters. The steps of this
        package do this; ``sample_khmc`` and sequential Monte Carlo ignore it.
    **kwargs
        Further arguments of ``pymc.CustomDist``, such as ``dims``.

    Notes
    -----
    The same ``random_seed`` gives the same draws for any number of cores. A standard deviation of the log estimate
    between 1 and 1.7 makes the best use of a fixed computing budget (Doucet et al. 2015); far above, chains get stuck,
    which the steps report. All free variables of the model must be sampled in one block, where the noises of several
    such likelihoods add up. If each group has one, with few inputs of its own, ``sample_khmc`` learns each separately
    and moves group by group.

    ``pm.sample_smc`` keeps accepted estimates, so its posterior is right too, but with PyMC's own kernels the noise
    does not follow ``random_seed``; with those of this package it does. Log likelihoods computed afterwards
    (``pm.compute_log_likelihood``) are fresh estimates; the accepted ones, with the prior added, are in
    ``sample_stats["lp"]``. Missing data are not imputed.

    PyMC's own steps re-evaluate the density at the current point; the block then returns the estimate that it made
    there, so they are exact, too. ``model.compile_logp()`` also repeats it: to measure noise, call ``fn`` itself.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def log_estimate(rng, theta, observed):
    ...     latent = theta + rng.standard_normal((200, observed.size))
    ...     return np.log(np.exp(-0.5 * (observed - latent) ** 2).mean(axis=0)).sum()
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 2)
    ...     y = pk.EstimatedLikelihood("y", log_estimate, theta, observed=np.array([0.3, 1.1, 0.8]))
    """
    check_further(name, kwargs)
    if not callable(fn):
        raise TypeError(f"fn must be a function fn(rng, *params, observed), got {type(fn).__name__}.")
    if random is not None and not callable(random):
        raise TypeError(f"random must be a function random(rng, *params, size), got {type(random).__name__}.")
    if not params:
        raise ValueError("EstimatedLikelihood needs at least one parameter, as in (name, fn, theta, observed=y).")
    if has_missing_entries(observed):
        raise ValueError(
            f"observed of EstimatedLikelihood {name!r} has missing entries, which cannot be imputed through a "
            "likelihood that is only estimated. Leave them out, or fill them and pass their mask as a parameter to fn."
        )
    if not 0.0 <= reuse_noise < 1.0:
        raise ValueError(f"reuse_noise of {name!r} is a probability below one, got {reuse_noise!r}.")
    params = [pt.as_tensor_variable(p) for p in params]
    data = pt.as_tensor_variable(observed)
    op = EstimatedLogLikelihoodOp(name, fn, reuse_noise, getattr(fn, "num_streams", 1), pointwise)

    # The data stand among the parameters as well: that is how PyMC learns the shape of the variable.
    cores = [",".join(f"p{i}_{k}" for k in range(p.type.ndim)) for i, p in enumerate(params)]
    core_data = ",".join(f"data_{k}" for k in range(data.type.ndim))
    signature = ",".join(f"({core})" for core in [*cores, core_data]) + f"->({core_data})"
    kwargs |= {"signature": signature, "dtype": data.type.dtype, "observed": observed}
    kwargs |= {"random": None if random is None else predictive(name, random)}
    variable = pm.CustomDist(name, *params, data, logp=lambda value, *inputs: op(*inputs[:-1], value), **kwargs)
    # On the class of the random variable's operator, which is this block's alone: copies of the model keep it.
    type(variable.owner.op).estimated_likelihood = op
    offer_to_estimated_model(pm.modelcontext(None))
    return variable


def check_further(name: str, arguments: dict) -> None:
    """Raise ``TypeError`` where a block is given arguments that ``pm.CustomDist`` would ignore in silence."""
    advice = f"Beside its own arguments it takes {', '.join(sorted(_MORE))}."
    check_keywords(f"The block {name!r}", arguments, _MORE, advice)


def predictive(name: str, random: Callable) -> Callable:
    """Return a function of the parameters and the data that draws a data set, as ``pm.CustomDist`` calls it."""

    def draw(*inputs, rng=None, size=None):
        *params, observed = inputs
        data = np.asarray(random(rng, *params, size=observed.shape))
        if data.shape != observed.shape:
            raise ValueError(
                f"the function that draws {name!r} returned shape {data.shape} for size={observed.shape}; it must "
                "return a data set of that shape."
            )
        return data

    return draw


def has_missing_entries(observed: TensorLike) -> bool:
    """Return whether data are masked or have NaN; False for graphs, of which that cannot be known."""
    if isinstance(observed, Variable):
        return False
    return isinstance(observed, np.ma.MaskedArray) or bool(np.any(pd.isna(np.asarray(observed))))
