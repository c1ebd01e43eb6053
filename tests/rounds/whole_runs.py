"""All rounds at once, as tests of them share."""

from pymc_kernel.rounds import sample_particles


def run(rounds, simulate, prior, observed, rng):
    """Return draws from the posterior after all rounds, as many as the settings have particles, and the last state."""
    state = rounds.init(prior, observed)
    while not state.is_finished:
        state, parameters = rounds.propose(rng, state)
        state = rounds.update(rng, state, parameters, simulate(rng, parameters))
    return sample_particles(rng, state.prior, state.likelihood, rounds.num_particles), state
