"""Kernel means, conditional means, ratios, Bayes' rules and filters on every kind of array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import embeddings as E
from pymc_kernel import kernels as K
from tests.fuzz.strategies import all_kept, arrays, dimensions, kept, powers, seeds, sizes

NAMES = (
    "points", "weights", "kernel", "length_scale", "x", "y", "grid", "function", "probability", "probabilities",
    "num_draws", "latent", "observed", "prior", "prior_weights", "inputs", "outputs", "numerator", "denominator",
    "states", "observations", "observation", "regularization", "filtered",
)  # fmt: skip


@st.composite
def kernels(draw):
    family = draw(st.sampled_from([None, None, K.Gaussian, K.RationalQuadratic, K.Laplace, K.Linear]))
    return None if family is None else family(draw(st.one_of(st.just("median"), powers())))


def weights_of(data, n):
    """Return no weights, weights of any sign, or those of another number of points."""
    return data.draw(st.one_of(st.none(), arrays((data.draw(st.sampled_from([n, n, n, 2])),))))


@given(data=st.data(), n=sizes(0, 6), d=dimensions(), kernel=kernels(), rng=seeds())
def test_kernel_means(data, n, d, kernel, rng):
    points, grid = data.draw(arrays((n, d))), data.draw(arrays((3, d)))
    weights = weights_of(data, n)
    mean = kept(lambda: E.KernelMean(points, weights, kernel), NAMES)
    if mean is None:
        return
    all_kept(NAMES, mean.mean, mean.covariance, lambda: mean.expectation(lambda x: x[:, 0]), lambda: mean(grid))
    kept(lambda: mean.mmd(E.KernelMean(grid, kernel=kernel)), NAMES)
    kept(lambda: mean.interval(data.draw(st.sampled_from([0.5, 1.0, 0.0, np.nan, 2.0]))), NAMES)
    kept(lambda: mean.sample(data.draw(st.integers(-1, 3)), rng), NAMES)
    kept(lambda: mean.herd(data.draw(st.integers(-1, 3))), NAMES)
    if isinstance(mean.kernel, K.Gaussian):
        kept(mean.point_estimate, NAMES)


@given(data=st.data(), n=sizes(0, 6), d=dimensions(), kernel=kernels())
def test_conditional_means(data, n, d, kernel):
    inputs, outputs = data.draw(arrays((n, d))), data.draw(arrays((data.draw(st.sampled_from([n, n, n, 2])), 2)))
    strength = data.draw(st.one_of(st.none(), powers()))
    rule = E.ConditionalMean(kernel, regularization=strength)
    fit = kept(lambda: rule.fit(inputs, outputs, weights_of(data, n)), NAMES)
    if fit is None:
        return
    places = data.draw(arrays((2, d)))
    kept(lambda: fit.weights(places), NAMES)
    found = kept(lambda: fit.condition(places), NAMES)
    if found is not None:
        rules = fit.sum_rule, fit.chain_rule
        all_kept(NAMES, found.mean, *(lambda rule=rule: rule(E.KernelMean(places)).mean() for rule in rules))


@given(data=st.data(), d=dimensions(), kernel=kernels(), relative=st.sampled_from([0.0, 0.5]))
def test_density_ratios(data, d, kernel, relative):
    above, below = (data.draw(arrays((data.draw(sizes()), d))) for _ in range(2))
    strength = data.draw(st.one_of(st.none(), powers()))
    ratio = E.DensityRatio(kernel, relative=relative, regularization=strength)
    fit = kept(lambda: ratio.fit(above, below, weights_of(data, len(above))), NAMES)
    if fit is not None:
        assert not np.isnan(fit.ratio).any()
        assert (fit.ratio >= 0.0).all()
        kept(lambda: fit(above), NAMES)


@pytest.mark.parametrize("method", ["importance", "conditional", "original"])
@given(data=st.data(), d=dimensions(), rng=seeds())
def test_bayes_rules(method, data, d, rng):
    n = data.draw(sizes(0, 12))
    latent, observed = data.draw(arrays((n, 2))), data.draw(arrays((data.draw(st.sampled_from([n, n, n, 2])), d)))
    prior = None if method == "conditional" else data.draw(st.one_of(st.none(), arrays((data.draw(sizes()), 2))))
    rule = E.OriginalBayesRule if method == "original" else E.KernelBayesRule
    fit = kept(lambda: rule(observed_kernel=data.draw(kernels())).fit(latent, observed, prior), NAMES)
    if fit is None:
        return
    place = data.draw(arrays((1, d)))
    all_kept(NAMES, lambda: fit.weights(place), lambda: fit.mean(place), lambda: fit.condition(place).weights)
    if method != "original":
        all_kept(NAMES, lambda: fit.interval(place), lambda: fit.sample(place, 3, rng))
        near = kept(lambda: fit.near(place, rng), NAMES)
        if near is not None:
            kept(lambda: near.refitted(rng.standard_exponential(len(near.latent))).posteriors(place), NAMES)
        found = kept(lambda: fit.calibration(num_draws=4, num_cases=5, rng=rng), NAMES)
        assert found is None or ((found.ranks >= 0.0) & (found.ranks <= 1.0)).all()


@pytest.mark.parametrize("method", ["importance", "original"])
@given(data=st.data(), p=dimensions(), d=dimensions())
def test_filters(method, data, p, d):
    n = data.draw(st.sampled_from([0, 1, 9, 10, 12]))
    states, observations = data.draw(arrays((n, p))), data.draw(arrays((n, d)))
    scale = data.draw(st.one_of(st.just(0.5), powers()))
    given = {"state_kernel": 0.5, "observed_kernel": scale, "regularization": 0.01, "ratio_regularization": 0.01}
    fit = kept(lambda: E.KernelBayesFilter(method, **given).fit(states, observations), NAMES)
    if fit is None:
        return
    seen = data.draw(arrays((3, d)))
    filtered = kept(lambda: fit.filter(seen), NAMES)
    if filtered is not None:
        assert np.abs(filtered.weights.sum(axis=1) - 1.0).max() < 1e-6
        ahead, back = (lambda: fit.predict(filtered, 2).mean()), (lambda: fit.smooth(filtered, seen).mean())
        all_kept(NAMES, filtered.mean, ahead, back)
    kept(lambda: fit.update(fit.start(), np.asarray(seen, dtype=float)[0]), NAMES)
