"""Settings without meaning are refused, and the refusal names them."""

import numpy as np
import pytest

from pymc_kernel import embeddings, rounds, scores, smc
from pymc_kernel import kernels as K
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc
from pymc_kernel.smc import population, tempering
from tests.fuzz.strategies import kept

ESTIMATORS = (scores.Lite, scores.Finite, scores.Full, scores.Nystrom)
WRONG = [np.nan, np.inf, -1.0, 0.0, "many", [1.0, np.nan]]
SETTINGS = {
    **dict.fromkeys((K.Gaussian, K.Matern32, K.Matern52, K.Laplace), ("length_scale",)),
    K.RationalQuadratic: ["length_scale", "alpha"],
    K.InverseMultiquadric: ["length_scale", "beta"],
    K.Polynomial: ["length_scale", "degree", "constant"],
    K.Linear: ["length_scale", "constant"],
    scores.Full: ["regularization", "kernel"],
    scores.Lite: ["regularization", "kernel", "penalty"],
    scores.Finite: ["regularization", "kernel", "num_features"],
    scores.Nystrom: ["regularization", "kernel", "num_basis"],
    scores.Values: ["max_values", "num_basis", "learn_points", "max_iterations", "kernel"],
    adaptive_metropolis.Config: ["covariance", "scale", "target_accept"],
    kameleon.Config: ["kernel", "num_basis", "isotropic_share", "gamma", "scale", "target_accept", "whiten"],
    kernel_hmc.Config: ["surrogate", "exploring_share", "max_steps", "target_accept"],
    tempering.Config: ["threshold", "min_moves", "max_moves", "correlation", "num_folds", "moves"],
    population.Config: ["drift", "drift_size", "weights", "surrogate"],
    smc.Walk: ["scale", "target_accept", "learning_rate"],
    smc.Hamiltonian: ["surrogate", "exploring_share", "max_steps"],
    embeddings.KernelBayesRule: ["regularization"],
    embeddings.OriginalBayesRule: ["regularization", "ratio_regularization"],
    embeddings.ConditionalMean: ["regularization"],
    embeddings.DensityRatio: ["relative", "regularization"],
    embeddings.KernelBayesFilter: ["method", "regularization", "ratio_regularization"],
    rounds.CautiousRounds: ["num_simulations", "rounds", "estimator", "num_particles"],
    LearnedLikelihood: ["num_centers"],
}
MEANT = {"whiten": 0.0, "max_iterations": 0.0, "constant": 0.0, "relative": 0.0}  # False, none, all


@pytest.mark.parametrize(("make", "name"), [(make, name) for make, names in SETTINGS.items() for name in names])
def test_settings_without_meaning_are_named(make, name):
    for wrong in WRONG:
        if wrong is not MEANT.get(name) and wrong != MEANT.get(name):
            assert kept(lambda w=wrong: make(**{name: w}), (name,)) is None, wrong


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_base_without_meaning_is_named(estimator):
    for wrong in WRONG:
        assert kept(lambda w=wrong: estimator(base=w).fit(np.eye(3)), ("base",)) is None, wrong
