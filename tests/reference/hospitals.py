"""Posterior means of the README's model by quadrature: Gauss-Hermite in the latent log odds, a grid outside."""

import numpy as np
from scipy.special import expit
from scipy.stats import binom, norm


def posterior_means(cured, patients=20):
    """Return the posterior means of level and spread."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    levels, spreads = np.linspace(-3, 5, 81), np.linspace(0.01, 5, 101)
    log_posterior = np.empty((levels.size, spreads.size))
    for i, level in enumerate(levels):
        for j, spread in enumerate(spreads):
            chance = expit(level + spread * nodes)[:, None]
            likelihood = weights @ binom.pmf(cured, patients, chance)
            log_posterior[i, j] = np.log(likelihood).sum() + norm.logpdf(level, 0, 2) + norm.logpdf(spread)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    return posterior.sum(axis=1) @ levels, posterior.sum(axis=0) @ spreads
