"""What the benchmarks measure of draws, and of time."""

import time

import numpy as np
from arviz_stats.base import array_stats

from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc

PROBABILITIES = np.arange(0.1, 0.95, 0.1)
_TRANSITIONS = {module.Config: module for module in (adaptive_metropolis, kameleon, kernel_hmc)}


def chain(rng, start, log_density, config, tune, draws):
    """Yield state and info of each draw after tuning, by the transition that the configuration is of."""
    module = _TRANSITIONS[type(config)]
    state = module.init(start, log_density(start), config)
    for _ in range(tune):
        state, info = module.step(rng, state, log_density, config)
        if module is adaptive_metropolis:
            state = module.adapt(state, info, config)
        else:
            state = module.adapt(rng, state, info, config, tune)
    yield from draws_from(rng, state, config, log_density, draws)


def draws_from(rng, state, config, log_density, draws):
    """Yield state and info of each draw, nothing adapted."""
    module = _TRANSITIONS[type(config)]
    for _ in range(draws):
        state, info = module.step(rng, state, log_density, config)
        yield state, info


def smallest_bulk_ess(draws):
    """Return the smallest bulk effective sample size over parameters; draws (chain, draw, d)."""
    return min(
        float(array_stats.ess(draws[..., j], chain_axis=0, draw_axis=1, method="bulk")) for j in range(draws.shape[-1])
    )


def largest_rhat(draws):
    """Return the largest rank-normalized split R-hat over parameters."""
    return max(float(array_stats.rhat(draws[..., j], chain_axis=0, draw_axis=1)) for j in range(draws.shape[-1]))


def share_below(draws, true_quantiles):
    """Return the share of draws below each true quantile, shape (9, d); draws (..., d), quantiles (9, d)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return np.stack([(flat <= q).mean(axis=0) for q in true_quantiles])


def quantile_error(shares):
    """Return the root mean square error of shares (9, d) of draws below the true quantiles."""
    return np.sqrt(((shares - PROBABILITIES[:, None]) ** 2).mean())


def error_implied_size(shares):
    """Return how many independent draws would have the same mean squared quantile error.

    Parameters
    ----------
    shares : ndarray (repetition, 9, d)
        From :func:`share_below`. n independent draws have p (1 - p) / n as the mean squared error of the share
        below the true p-quantile, whatever the distribution is; the smallest n over parameters is returned.
    """
    squared = ((shares - PROBABILITIES[:, None]) ** 2).mean(axis=0).sum(axis=0)
    return float(((PROBABILITIES * (1 - PROBABILITIES)).sum() / squared).min())


def worth(repetitions, reference):
    """Return mean smallest bulk ESS, error-implied size and median R-hat of repetitions (chain, draw, d)."""
    quantiles = np.quantile(reference, PROBABILITIES, axis=0)
    implied = error_implied_size(np.array([share_below(draws, quantiles) for draws in repetitions]))
    ess = np.mean([smallest_bulk_ess(draws) for draws in repetitions])
    return ess, implied, np.median([largest_rhat(draws) for draws in repetitions])


def standard_error(values):
    """Return the standard error of a mean."""
    return np.std(values, ddof=1) / np.sqrt(len(values))


def with_error(values, digits=3):
    """Return a mean with its standard error in brackets."""
    return f"{np.mean(values):.{digits}f} ({standard_error(values):.{digits}f})"


def plus_minus(values, digits=3):
    """Return a mean ± its standard error."""
    return f"{np.mean(values):.{digits}f} ± {standard_error(values):.{digits}f}"


def said_by_emulation(caught):
    """Return the messages of ``pk.emulate`` among warnings that were caught."""
    return [str(w.message) for w in caught if "the emulated model" in str(w.message)]


def timed(function, *arguments):
    """Return what a call returns, and the seconds that it took."""
    begun = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - begun


def median_time(function, repeats):
    """Return the median of seconds of calls, one call before them not counted."""
    function()
    return float(np.median([timed(function)[1] for _ in range(repeats)]))


SPEED_HEADER = ("", "ms", "plain NumPy, ms", "ratio", "wanted, ms")


def speed_row(name, ours, plain=None, wanted=None):
    """Return a row under :data:`SPEED_HEADER` from seconds: ours, those of plain NumPy, wanted ones."""
    shown = [None if seconds is None else f"{1e3 * seconds:.3g}" for seconds in (ours, plain, wanted)]
    return [name, *shown[:2], None if plain is None else f"{plain / ours:.0f}", shown[2]]
