"""What estimators return depends on the data and the seed only."""

import numpy as np
import pytest

from pymc_kernel import embeddings as E

ESTIMATORS = {
    "rule": (E.KernelBayesRule(num_basis=30), lambda fit, y: fit.interval(y)),
    "original": (E.OriginalBayesRule(num_basis=30), lambda fit, y: fit.mean(y)),
    "ratio": (E.DensityRatio(num_basis=30), lambda fit, y: fit(y)),
    "conditional": (E.ConditionalMean(num_basis=30), lambda fit, y: fit.weights(y)),
    "filter": (E.KernelBayesFilter(state_kernel=0.5, num_basis=30), lambda fit, y: fit.filter(y).weights),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_is_its_seed_alone(name, rng):
    estimator, answer = ESTIMATORS[name]
    data = rng.standard_normal((600, 2)), rng.standard_normal((600, 2))
    generator = np.random.default_rng(1)
    first, second = estimator.fit(*data, rng=1), estimator.fit(*data, rng=generator)
    generator.random(100)  # what its caller draws afterwards
    expected = answer(first, data[1][:5])
    np.testing.assert_array_equal(answer(second, data[1][:5]), expected)
    np.testing.assert_array_equal(answer(first, data[1][:5]), expected)
    assert np.abs(answer(estimator.fit(*data), data[1][:5]) - expected).max() > 0.0  # another seed
