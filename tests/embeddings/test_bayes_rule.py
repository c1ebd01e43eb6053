import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from pymc_kernel.embeddings import ConditionalMean, DensityRatio, KernelBayesRule, KernelMean, OriginalBayesRule
from pymc_kernel.embeddings.ridge import RidgePath, factorize, least_error
from pymc_kernel.kernels import FeatureKernel, Gaussian, Linear, Product, Sum, random_fourier_features
from pymc_kernel.kernels.points import robust_scales
from tests.embeddings.pairs import EXACT, pairs
from tests.reference import slow_embeddings as slow


def test_weights_are_those_of_the_papers():
    z, x, u = pairs()
    kz, kx, y = Gaussian(1.3), Gaussian(1.7), np.array([[0.8, 1.4]])
    prior_mean = kz(z, u).mean(axis=1)
    common = {"latent_kernel": kz, "observed_kernel": kx, **EXACT}
    ratio, expected = slow.importance(kz(z), prior_mean, kx(x), kx(x, y)[:, 0], 0.05, 0.02)
    # The ratio is scaled to a mean of one, which is a regularization of another size.
    given = {"ratio": DensityRatio(regularization=0.05, **EXACT), "regularization": 0.02 / ratio.mean()}
    rule = KernelBayesRule(**given, **common).fit(z, x, u)
    np.testing.assert_allclose(rule.ratio, ratio / ratio.mean(), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(rule.weights(y)[0], expected, rtol=1e-7, atol=1e-8)
    literal = slow.original(kz(z), prior_mean, kx(x), kx(x, y)[:, 0], 0.05, 3.0)
    common["ratio_regularization"] = 0.05
    # Prior weights sum to one here, not to n.
    rule = OriginalBayesRule(regularization=3.0 / len(z) ** 2, **common).fit(z, x, u)
    np.testing.assert_allclose(rule.weights(y)[0], literal, rtol=1e-7, atol=1e-8)


def test_conditional_is_kernel_regression():
    z, x, _ = pairs()
    kernel, y = Gaussian(1.2), np.array([[1.0, 0.5], [2.0, 2.0]])
    rule = KernelBayesRule(observed_kernel=kernel, regularization=0.01, **EXACT).fit(z, x)
    n = len(z)
    expected = np.linalg.solve(kernel(x) + n * 0.01 * np.eye(n), kernel(x, y)).T
    np.testing.assert_allclose(rule.weights(y), expected, rtol=1e-7, atol=1e-8)
    twin = ConditionalMean(kernel, regularization=0.01, **EXACT).fit(x, z)
    np.testing.assert_allclose(twin.weights(y), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("method", ["importance", "original", "conditional"])
def test_low_rank_agrees_with_dense(method):
    z, x, u = pairs(200)
    common = {"regularization": 0.01, "latent_kernel": Gaussian(1.5), "observed_kernel": Gaussian(2.0)}
    y, fits = x[:3] + 0.1, []
    for basis in (EXACT, {"num_basis": 200, "tolerance": 1e-9}):
        if method == "original":
            rule = OriginalBayesRule(ratio_regularization=0.05, **common, **basis)
        else:
            rule = KernelBayesRule(ratio=DensityRatio(regularization=0.05, **basis), **common, **basis)
        fits.append(rule.fit(z, x) if method == "conditional" else rule.fit(z, x, u))
    exact, low = fits
    assert low.features.factor.features.shape[1] < 0.7 * len(z)
    np.testing.assert_allclose(low.mean(y), exact.mean(y), atol=1e-6)


def test_leave_one_out_is_what_it_says():
    rng = np.random.default_rng(0)
    features, weights = rng.standard_normal((25, 6)), rng.uniform(0.0, 2.0, 25)
    targets = rng.standard_normal((25, 3))
    path = RidgePath.of(features, weights)
    expected = slow.ridge_errors(features, weights, targets, 0.1)
    np.testing.assert_allclose(path.leave_one_out(targets, 0.1), expected, rtol=1e-9)
    losses = [weights @ (slow.ridge_errors(features, weights, targets, value) ** 2).sum(axis=1) for value in path.grid]
    assert least_error(path, targets) == path.grid[np.argmin(losses)]


def test_evidence_is_that_of_a_gaussian_process():
    """Against the density of n dependent normals with the best scale put in."""
    rng = np.random.default_rng(0)
    features, weights = rng.standard_normal((20, 4)), rng.uniform(0.5, 2.0, 20)
    targets = rng.standard_normal((20, 2))
    path = RidgePath.of(features, weights)
    expected = []
    for strength in (0.01, 0.3):
        covariance = features @ features.T + 20 * strength * np.diag(1.0 / weights)
        scale = np.trace(targets.T @ np.linalg.solve(covariance, targets)) / targets.size
        marginal = stats.multivariate_normal(np.zeros(20), scale * covariance)
        expected.append(marginal.logpdf(targets.T).sum())
    found = path.evidence(targets, np.array([0.01, 0.3]))
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-8)


@pytest.mark.parametrize("relative", [0.3, 0.7])
def test_loss_of_the_relative_ratio_is_nearly_leave_one_out(relative):
    """The shares of the others, which rise by 1 / n when one leaves, are left as they are."""
    z, _, u = pairs(60)
    kernel = Gaussian(1.0)
    factor = factorize(kernel, z, 10_000, 1e-13, np.random.default_rng(0))
    losses, expected = [], []
    for strength in (1e-3, 1e-2, 1e-1):
        ratio = DensityRatio(kernel, relative=relative, regularization=strength, **EXACT).fit(u, z)
        losses.append(ratio.solution.loss)
        expected.append(slow.relative_ratio_loss(factor.features, factor.extend(u), relative, strength))
    np.testing.assert_allclose(losses, expected, atol=0.01)


def test_loss_of_the_ratio_is_leave_one_out():
    z, _, u = pairs(30)
    kernel = Gaussian(1.0)
    factor = factorize(kernel, z, 10_000, 1e-13, np.random.default_rng(0))
    weights = np.random.default_rng(1).dirichlet(np.ones(len(u)))
    ratio = DensityRatio(kernel, regularization=0.07, **EXACT).fit(u, z, weights)
    # The rest of the prior's weights is scaled to one here and there.
    expected = slow.ratio_loss(factor.features, factor.extend(u), weights, 0.07)
    assert ratio.solution.loss == pytest.approx(expected, rel=1e-8)


def test_the_ratio_is_the_smoothest_within_one_standard_error_of_the_least_loss():
    """The least loss is at an eighteenth of the regularization that is chosen, and lower by .022."""
    z, _, u = pairs(200)
    chosen = DensityRatio().fit(u, z, rng=0).solution
    strengths = chosen.regularization * 10.0 ** -np.arange(0.0, 3.1, 0.25)
    losses = [DensityRatio(regularization=s).fit(u, z, rng=0).solution.loss for s in strengths]
    assert losses[0] == pytest.approx(chosen.loss)
    assert min(losses) + 0.01 < chosen.loss < min(losses) + 0.05


@pytest.mark.parametrize("tolerance", [1e-14, 1e-15, 0.0])
def test_a_tolerance_below_rounding_is_met_by_a_factor_that_leaves_rounding(tolerance):
    """With room for more features than there are points."""
    z = np.random.default_rng(1).standard_normal((400, 2))
    factor = factorize(Gaussian(1.0), z, 1000, tolerance, np.random.default_rng(0))
    assert factor.features.shape[1] < 400
    np.testing.assert_allclose(factor.features @ factor.features.T, Gaussian(1.0)(z), atol=1e-11)


def test_ratio_of_two_normal_laws():
    rng = np.random.default_rng(0)
    q, p = rng.standard_normal((2000, 1)), np.sqrt(0.5) * rng.standard_normal((2000, 1))
    places = np.linspace(-1.5, 1.5, 7)[:, None]
    truth = np.sqrt(2.0) * np.exp(-0.5 * places[:, 0] ** 2)
    ratio = DensityRatio().fit(p, q, rng=0)
    assert np.abs(ratio(places) - truth).max() < 0.15
    a = 0.2
    relative = DensityRatio(relative=a).fit(p, q, rng=0)
    assert np.abs(relative(places) - truth / (a * truth + 1 - a)).max() < 0.15
    # Where the numerator is all there is, the relative ratio stays below 1 / a.
    apart = DensityRatio(relative=a).fit(p + 4.0, q, rng=0)
    assert apart(np.array([[4.0]]))[0] == pytest.approx(1.0 / a, rel=0.2)


def test_linear_gaussian_posterior_as_n_grows():
    errors = []
    for n in (300, 3000):
        z, x, u = pairs(n, noise=0.5, seed=3)
        rule = KernelBayesRule(observed_kernel=Sum([Linear(1.0), Linear(1.0, constant=1.0)])).fit(z, x, u, rng=0)
        y = 1.0 + np.random.default_rng(8).standard_normal((200, 2))
        truth = (y - 1.0) / 0.25 / (2.0 + 1.0 / 0.25)
        errors.append(((rule.mean(y) - truth) ** 2).mean())
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 2e-3


def test_the_original_rule_beats_the_prior_mean():
    """Signal in two dimensions, n = l = 200, three problems of the sources."""
    errors, of_prior = [], []
    for seed in range(3):
        z, x, u = pairs(200, noise=1.0, seed=seed)
        y = 1.0 + np.sqrt(1.5) * np.random.default_rng(99).standard_normal((200, 2))
        truth = (y - 1.0) / 3.0
        errors.append(((OriginalBayesRule().fit(z, x, u, rng=0).mean(y) - truth) ** 2).mean())
        of_prior.append((truth**2).mean())
    assert np.mean(errors) < 0.1 * np.mean(of_prior)


def test_draws_follow_two_modes():
    """Symmetric observation: the mean says nothing, only what is near does. All points alike put a fifth at zero."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-2.0, 2.0, (3000, 1))
    rule = KernelBayesRule(num_basis=100).fit(z, np.abs(z) + 0.1 * rng.standard_normal(z.shape), rng=0)
    assert rule.features.factor.features.shape[1] <= 100
    draws = rule.near([1.5], rng).sample([1.5], 2000, rng)[0, :, 0]
    assert np.mean(np.abs(np.abs(draws) - 1.5) < 0.4) > 0.95
    assert 0.35 < np.mean(draws > 0) < 0.65


@pytest.mark.long
def test_calibration_knows_right_from_wrong():
    z, x, u = pairs(400)
    rng = np.random.default_rng(1)
    rule = KernelBayesRule().fit(z, x, u, rng=0)
    truth = np.sqrt(0.5) * rng.standard_normal((120, 2))
    y = 1.0 + truth + 0.3 * rng.standard_normal((120, 2))
    assert rule.calibration(truth, y, rng=rng).worst_gap() < 4.0
    assert rule.calibration(num_cases=60, rng=rng).worst_gap() < 4.0
    # A rule that believes the training marginal to be the prior, and noise of half the size.
    wrong = KernelBayesRule().fit(z, z + 1.0 + 0.5 * (x - z - 1.0), rng=0)
    assert wrong.calibration(truth, y, rng=rng).worst_gap() > 6.0


def test_robust_scales_are_standard_deviations_of_a_normal_distribution():
    points = 3.0 + np.array([1e-6, 1e3]) * ndtri((np.arange(999)[:, None] + 0.5) / 999)
    for one, other in zip(robust_scales(points), ([3.0, 3.0], [1e-6, 1e3]), strict=True):
        np.testing.assert_allclose(one, other, rtol=5e-3)


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


@pytest.mark.filterwarnings("ignore:all columns are constant")
@pytest.mark.parametrize(("message", "call"), [
    ("one set", lambda z, x: Product([Gaussian()], [])),
    ("at least one", lambda z, x: Sum([])),
    ("they must agree", lambda z, x: KernelBayesRule().fit(z, x, z[:, :1])),
    ("columns", lambda z, x: KernelBayesRule().fit(z, x).mean(x[:, :1])),
    ("positive number", lambda z, x: KernelBayesRule().fit(z, x, z, -np.ones(len(z)))),
    ("residuals", lambda z, x: OriginalBayesRule().fit(z, x).interval(x)),
    ("zero at all points", lambda z, x: KernelBayesRule(observed_kernel=Linear()).fit(z, 0.0 * x)),
])  # fmt: skip
def test_mistakes_are_named(message, call):
    with pytest.raises(ValueError, match=message):
        call(*pairs(20)[:2])


def test_failed_simulations_and_constant_columns_are_said_and_one_gone_wild_changes_little():
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
    z, x, _ = pairs(1000)
    y = x[:50] + 0.05
    z, x, y = z[:500], x[:500], y[:20]
    clean = KernelBayesRule().fit(z, x, rng=0)
    x[7] = 1e6
    wild = KernelBayesRule().fit(z, x, rng=0)
    assert np.abs(wild.mean(y) - clean.mean(y)).max() < 0.15
    np.testing.assert_allclose(np.ptp(wild.interval(y), axis=2), np.ptp(clean.interval(y), axis=2), rtol=0.15)


def test_features_that_repeat_themselves_do_no_harm():
    """Their Gram matrix is singular; the prior's embedding is solved for where it is not."""
    z, x, u = pairs(50)
    twice = FeatureKernel(lambda points: np.concatenate([points, points, np.ones((len(points), 1))], axis=1))
    once = FeatureKernel(lambda points: np.concatenate([np.sqrt(2.0) * points, np.ones((len(points), 1))], axis=1))
    given = {"ratio_regularization": 1e-18, "regularization": 1e-3, "observed_kernel": Gaussian(1.0)}
    found, expected = (OriginalBayesRule(latent_kernel=k, **given).fit(z, x, u).mean(x[:2]) for k in (twice, once))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_prior_out_of_reach_is_said():
    z, x, u = pairs(300)
    with pytest.warns(UserWarning, match="do not cover it"):
        KernelBayesRule().fit(z, x, 4.0 + 0.5 * u)
    for rule in (KernelBayesRule(), OriginalBayesRule()):
        with pytest.raises(ValueError, match="zero at every training point"):
            rule.fit(z, x, 400.0 + u)
