"""Bayes' rule with kernels of several variables, sum and chain rule, and what users get wrong."""

import warnings

import numpy as np
import pytest

from pymc_kernel.embeddings import ConditionalMean, KernelBayesRule, KernelMean, OriginalBayesRule
from pymc_kernel.kernels import FeatureKernel, Gaussian, Linear, Product, Sum, random_fourier_features
from tests.embeddings.pairs import pairs


def test_products_sums_and_features():
    z, x, _ = pairs(150)
    other = np.random.default_rng(4).standard_normal((150, 1))
    joint = np.concatenate([x, other], axis=1)
    features = FeatureKernel(random_fourier_features(Gaussian(1.5), 2000, 2, np.random.default_rng(0)))
    exact = KernelBayesRule(observed_kernel=Gaussian(1.5), regularization=0.01).fit(z, x).mean(x[:20])
    near = KernelBayesRule(observed_kernel=features, regularization=0.01).fit(z, x).mean(x[:20])
    assert np.abs(near - exact).max() < 0.1
    resolved = Product([Gaussian("median"), Gaussian("median")], [slice(0, 2), [2]]).resolve(joint)
    assert resolved.kernels[0].length_scale != resolved.kernels[1].length_scale
    for wrong in (lambda: Product([Gaussian()], []), lambda: Sum([])):
        with pytest.raises(ValueError, match=r"at least one|one set"):
            wrong()


def test_sum_and_chain_rule_against_the_marginal():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 2, (800, 1))
    outputs = np.sin(inputs) + 0.2 * rng.standard_normal(inputs.shape)
    embedded = KernelMean(0.5 + 0.3 * rng.standard_normal((800, 1)))
    conditional = ConditionalMean().fit(inputs, outputs, rng=0)
    truth = KernelMean(np.sin(embedded.points) + 0.2 * rng.standard_normal(embedded.points.shape))
    found = conditional.sum_rule(embedded)
    assert found.mmd(truth) < 0.05 < 0.2 < KernelMean(outputs).mmd(truth)
    joint = conditional.chain_rule(embedded)
    product = float(joint.expectation(lambda p: p[:, 0] * p[:, 1]))
    assert product == pytest.approx(float((embedded.points * truth.points).mean()), abs=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, x: KernelBayesRule(regularization="marginal"), "must be a positive number"),
        (lambda z, x: KernelBayesRule().fit(z, x, z[:, :1]), "they must agree"),
        (lambda z, x: KernelBayesRule().fit(z, x).mean(x[:, :1]), "columns"),
        (lambda z, x: KernelBayesRule().fit(z, x, z, -np.ones(len(z))), "positive number"),
        (lambda z, x: OriginalBayesRule().fit(z, x).interval(x), "residuals"),
        (lambda z, x: KernelBayesRule(observed_kernel=Linear()).fit(z, 0.0 * x), "zero at all points"),
    ],
)
def test_mistakes_are_named(call, message):
    z, x, _ = pairs(20)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="all columns are constant")
        with pytest.raises(ValueError, match=message):
            call(z, x)


def test_failed_simulations_and_constant_columns_are_said():
    z, x, _ = pairs(100)
    x = np.concatenate([x, np.full((100, 1), 7.0)], axis=1)
    x[:10, 0] = np.nan
    with pytest.warns(UserWarning, match="pairs|constant") as said:
        rule = KernelBayesRule().fit(z, x)
    texts = " ".join(str(w.message) for w in said)
    assert "10 of 100" in texts
    assert "columns [2] are constant" in texts
    assert rule.num_dropped == 10
    assert np.isfinite(rule.mean(x[20:30])).all()


def test_features_that_repeat_themselves_do_no_harm():
    """Their Gram matrix is singular; the prior's embedding is solved for where it is not."""
    z, x, u = pairs(50)
    twice = FeatureKernel(lambda points: np.concatenate([points, points, np.ones((len(points), 1))], axis=1))
    once = FeatureKernel(lambda points: np.concatenate([np.sqrt(2.0) * points, np.ones((len(points), 1))], axis=1))
    given = {"ratio_regularization": 1e-18, "regularization": 1e-3, "observed_kernel": Gaussian(1.0)}
    found, expected = (OriginalBayesRule(latent_kernel=k, **given).fit(z, x, u).mean(x[:2]) for k in (twice, once))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_one_simulation_gone_wild_changes_little():
    z, x, _ = pairs(1000)
    y = x[:50] + 0.05
    z, x, y = z[:500], x[:500], y[:20]
    clean = KernelBayesRule().fit(z, x, rng=0)
    x[7] = 1e6
    wild = KernelBayesRule().fit(z, x, rng=0)
    assert np.abs(wild.mean(y) - clean.mean(y)).max() < 0.15
    np.testing.assert_allclose(np.ptp(wild.interval(y), axis=2), np.ptp(clean.interval(y), axis=2), rtol=0.15)


def test_a_prior_out_of_reach_is_said():
    z, x, u = pairs(300)
    with pytest.warns(UserWarning, match="do not cover it"):
        KernelBayesRule().fit(z, x, 4.0 + 0.5 * u)
    for rule in (KernelBayesRule(), OriginalBayesRule()):
        with pytest.raises(ValueError, match="zero at every training point"):
            rule.fit(z, x, 400.0 + u)
