"""All rounds at once, as tests of them share."""


def run(rounds, simulate, prior, observed, rng):
    """Return draws from the posterior after all rounds, as many as the sampler has particles, and the last state."""
    state = rounds.init(prior, observed)
    while not state.is_finished:
        state, parameters = rounds.propose(rng, state)
        state = rounds.update(rng, state, parameters, simulate(rng, parameters))
    return rounds.sampler.sample(rng, state.prior, state.likelihood), state
