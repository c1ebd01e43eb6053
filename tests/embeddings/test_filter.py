import numpy as np
import pytest

from benchmarks.kbr_filter import rotating
from pymc_kernel.embeddings import KernelBayesFilter
from pymc_kernel.kernels import FeatureKernel, Gaussian, random_fourier_features
from tests.embeddings.pairs import EXACT
from tests.reference import slow_embeddings as slow

GIVEN = {"regularization": 0.01, "ratio_regularization": 0.003, "state_kernel": 0.5, "observed_kernel": 1.0}


def split(seed, train, test=100):
    states, seen = rotating("rotation", train + test, np.random.default_rng(seed))
    return states[:train], seen[:train], states[train:], seen[train:]


def test_filter_is_algorithm_2():
    z, x, _, y = split(0, 60, 15)
    kz, kx = Gaussian(0.8), Gaussian(1.1)
    given = {"state_kernel": kz, "observed_kernel": kx, "regularization": 0.02, "ratio_regularization": 0.01}
    learned = KernelBayesFilter(**given, **EXACT).fit(z, x, rng=0)
    expected = slow.filter_weights(z, kz(z), kx(x), kx(x, y).T, 0.01, 0.02)
    np.testing.assert_allclose(learned.filter(y).weights, expected, atol=1e-7)


def test_one_by_one_is_the_batch_and_an_observation_from_nowhere_leaves_the_prediction():
    z, x, _, y = split(1, 150, 10)
    y[7] = 1e6
    learned = KernelBayesFilter(**GIVEN).fit(z, x, rng=0)
    batch, state = learned.filter(y), learned.start()
    for t, observation in enumerate(y):
        state = learned.update(state, observation)
        np.testing.assert_allclose(state.weights, batch.weights[t], rtol=1e-10)
    np.testing.assert_allclose(batch.weights.sum(axis=1), 1.0)
    assert (np.abs(batch.mean()) < 2.0).all()


@pytest.mark.parametrize(("method", "strength"), [("importance", 0.01), ("original", 1e-5)])
def test_filters_smooths_and_predicts_better_than_it_sees(method, strength):
    """Mean squared errors over three sequences: observation .08, no knowledge of the state about one."""
    errors = []
    settings = {"regularization": strength, "ratio_regularization": 1e-3, "state_kernel": 0.25, "observed_kernel": 1.0}
    for seed in range(3):
        z, x, truth, y = split(seed, 400)
        learned = KernelBayesFilter(method, **settings).fit(z, x, rng=0)
        filtered = learned.filter(y)
        found = {"filter": filtered.mean(), "smooth": learned.smooth(filtered, y).mean(), "seen": y}
        off = {name: states - truth for name, states in found.items()}
        off["predict"] = learned.predict(filtered, 2).mean()[:-2] - truth[2:]
        errors.append([(off[name] ** 2).sum(axis=1).mean() for name in ("filter", "smooth", "predict", "seen")])
    means = dict(zip(("filter", "smooth", "predict", "seen"), np.mean(errors, axis=0), strict=True))
    assert means["filter"] < 0.85 * means["seen"]
    assert means["predict"] < 0.3
    assert means["smooth"] < 0.95 * means["filter"]


def test_settings_are_chosen_on_the_end_of_the_sequence():
    z, x, truth, y = split(0, 150)
    learned = KernelBayesFilter(state_kernel=0.5).fit(z, x, rng=0)
    assert learned.settings.state_scale == 0.5
    assert None not in learned.settings
    poor = KernelBayesFilter(**(GIVEN | {"regularization": 10.0, "ratio_regularization": 1.0})).fit(z, x, rng=0)
    errors = [((f.filter(y).mean() - truth) ** 2).sum(axis=1).mean() for f in (learned, poor)]
    assert errors[0] < 0.3 * errors[1]


@pytest.mark.parametrize("method", ["importance", "original"])
def test_regularizations_are_in_units_of_the_kernel(method):
    z, x, _, y = split(3, 80, 20)
    settings = {"regularization": 1e-3, "ratio_regularization": 1e-2, "state_kernel": 0.5}
    features = random_fourier_features(Gaussian(1.0), 50, 2, np.random.default_rng(0))
    kernels = FeatureKernel(features), FeatureKernel(lambda points: 10.0 * features(points))
    fits = [KernelBayesFilter(method, observed_kernel=k, **settings).fit(z, x, rng=0) for k in kernels]
    means = [fit.filter(y).mean() for fit in fits]
    np.testing.assert_allclose(*means, atol=1e-6)


def test_mistakes_are_named():
    z, x, _, y = split(0, 60, 10)
    rule = KernelBayesFilter(**GIVEN)
    learned = rule.fit(z, x, rng=0)
    filtered = learned.filter(y)
    for message, call in (
        ("must be pairs", lambda: rule.fit(z, x[:-1])),
        ("at least ten", lambda: rule.fit(z[:5], x[:5])),
        ("those it came from", lambda: learned.smooth(filtered, y[:-1])),
        ("steps must be", lambda: learned.predict(filtered, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
