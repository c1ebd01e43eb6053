"""Chains that several tests run."""

from functools import partial

import numpy as np

from pymc_kernel.mcmc import adaptive_metropolis, local_proposal, surrogate_fit
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.metropolis import append


def proposal_covariance(position, learned, config, scale):
    """Return the covariance (d, d) of Kameleon's proposal with scale s at a position, in the target's coordinates."""
    local = local_proposal.local_at(np.asarray(position, dtype=float), learned)[1]
    gamma, nu = config.widths(scale * learned.unit)
    return learned.factor @ (gamma**2 * np.eye(len(local)) + nu**2 * local) @ learned.factor.T


def seen(state, points, values):
    """Return the state of a chain in the bulk that has visited and evaluated these places, too."""
    evaluated, visited = state.evaluated, state.visited
    for x, value in zip(points, values, strict=True):
        evaluated, visited = append(evaluated, np.append(x, value)), append(visited, x)
    return state._replace(evaluated=evaluated, visited=visited, arrival=None)


def taught(rng, points, values, config):
    """Return the state of a chain that has seen these places and learned a surrogate from them."""
    state = seen(kh.init(points[0], values[0], config), points, values)
    return kh.with_fit(state, surrogate_fit.refit(rng, [state], config), config)


def misled(rng, config):
    """Return a state whose surrogate was learned from another distribution: wrong place, wrong scale, no bend."""
    points = rng.normal(size=(80, 2)) * [6.0, 4.0] + [2.0, 1.0]
    values = -0.5 * (((points - [2.0, 1.0]) / [6.0, 4.0]) ** 2).sum(axis=1) + 0.3 * np.sin(points[:, 0])
    state = taught(rng, points, values, config)
    shape = {"mean": points.mean(axis=0), "factor": np.linalg.cholesky(np.cov(points.T))}
    return state._replace(walk=state.walk._replace(**shape))


def run(module, rng, log_density, start, config=None, tune=800, draws=2000, states=None):
    """Return the draws (draws, d) of a chain after tuning and its last state; all states go to the list ``states``."""
    config = module.Config() if config is None else config
    start = np.asarray(start, dtype=float)
    state, out = module.init(start, log_density(start), config), np.empty((draws, start.size))
    learn = adaptive_metropolis.adapt if module is adaptive_metropolis else partial(module.adapt, rng)
    how_long = () if module is adaptive_metropolis else (tune,)
    for t in range(tune + draws):
        state, info = module.step(rng, state, log_density, config)
        if t < tune:
            state = learn(state, info, config, *how_long)
        else:
            out[t - tune] = state.position
        if states is not None:
            states.append(state)
    return out, state


def moved(rng, target, begin, step, num_points, num_steps):
    """Draw exactly from the target, move each by a frozen transition from the state ``begin(x, log density)``.

    Returned are the points, and where each move began with what the transition says of it.
    """
    points, moves = target.sample(rng, num_points), []
    for i, x in enumerate(points):
        state = begin(x, target.log_density(x))
        for _ in range(num_steps):
            before = state.position
            state, info = step(rng, state, target.log_density)
            moves.append((before, info))
        points[i] = state.position
    return points, moves
