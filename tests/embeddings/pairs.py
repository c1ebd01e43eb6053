"""Pairs of parameters and data that several tests learn from."""

import numpy as np

EXACT = {"num_basis": 10_000, "tolerance": 1e-13}  # settings for dense matrices


def pairs(n=120, d=2, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n, d))
    return latent, 1.0 + latent + noise * rng.standard_normal((n, d)), np.sqrt(0.5) * rng.standard_normal((n, d))
