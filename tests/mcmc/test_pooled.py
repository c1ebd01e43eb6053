import numpy as np

from pymc_kernel.mcmc import kernel_hmc


def log_density(position):
    return -0.5 * float(position @ position)


def tuned(rng, rejections=0, num_draws=80):
    config = kernel_hmc.Config()
    state = kernel_hmc.init(np.zeros(2), 0.0, config)
    state = kernel_hmc.run(rng, state, log_density, config, num_draws, settle=lambda accepted: None)
    return state._replace(rejections=rejections), config


def test_a_chain_does_not_begin_with_the_rejections_of_another(rng):
    state, config = tuned(rng, rejections=351)
    learned = kernel_hmc.frozen([state, state], config)
    assert kernel_hmc.relocate(learned, np.ones(2), -1.0).rejections == 0
