"""Kernel HMC chains that learn one surrogate together while they tune.

Chains that start far apart explore more of a hard target than a single one: each learns from the evaluations of all.
Between two fits they run separately, so the result does not depend on how they are scheduled. After tuning everything
they share is frozen, and every chain is a Markov chain of its own that leaves the target invariant.

Imports NumPy and the lower floors only.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.kernel_hmc import Config, State
from pymc_kernel.mcmc.moves import averaged
from pymc_kernel.mcmc.surrogate_fit import bulk_of, joint_shape, places_to_survey, refit
from pymc_kernel.parallel import one_blas_thread

__all__ = ["fit_together", "frozen", "run", "stretches"]


def stretches(num_dims: int, num_tune: int) -> list[int]:
    """Return the lengths of the stretches between fits, in draws of each chain; they sum to ``num_tune``."""
    due = [t for t in range(num_tune) if kernel_hmc.refit_is_due(num_dims, t, num_tune)]
    return np.diff([0, *(t + 1 for t in due), num_tune]).tolist()


def run(rng: np.random.Generator, state: State, log_density: Callable, config: Config, num_draws: int) -> State:
    """Return the state of one chain after a stretch; its draws and evaluations are remembered."""
    for _ in range(num_draws):
        state, info = kernel_hmc.step(rng, state, log_density, config)
        state = kernel_hmc.learn_from(state, info, config)
    return state


@one_blas_thread
def fit_together(rng: np.random.Generator, states: Sequence[State], config: Config) -> list[State]:
    """Return the states with one surrogate and one shape of the walk learned from all; unchanged where that fails."""
    in_bulk = [s for s in states if s.arrival is None]
    fit = refit(rng, in_bulk, config) if in_bulk else None
    if fit is None:
        return list(states)
    archive, choice = bulk_of(in_bulk), averaged([s.choice for s in in_bulk])
    places = places_to_survey(rng, states, fit)
    return [
        kernel_hmc.with_fit(s._replace(archive=archive, choice=choice._replace(shares=s.choice.shares)), fit, config, p)
        for s, p in zip(states, places, strict=True)
    ]


@one_blas_thread
def frozen(states: Sequence[State], config: Config) -> State:
    """Return the state that every chain samples with after tuning; ``kernel_hmc.relocate`` moves it to each chain."""
    states = [s for s in states if s.arrival is None] or states
    mean, factor = joint_shape(states)
    log_scale = float(np.mean([s.walk.log_scale for s in states]))
    walk = states[0].walk._replace(mean=mean, factor=factor, log_scale=log_scale)
    together = states[0]._replace(
        walk=walk, archive=bulk_of(states), choice=averaged([s.choice for s in states]), rejections=0
    )
    return kernel_hmc.finish(together, config)
