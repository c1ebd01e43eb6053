"""The learned likelihood against densities that are known: simulators whose distribution has a formula."""

import functools

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit
from scipy.stats import kstest, norm, poisson
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.likelihood_free.learned_likelihood import learned
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Marginals
from tests.reference.differences import assert_derivative, central_differences

ALONE = LearnedLikelihood(num_replicates=0)


def fresh(seed, n, d):
    rng = np.random.default_rng(seed)
    return rng, rng.standard_normal((n, d))


def gap(fit, parameters, summaries, exact):
    """Mean excess of the exact log density, an estimate of the Kullback-Leibler divergence."""
    return np.mean(exact - fit.log_density(parameters, summaries))


def linear(rng, theta):
    """Correlated normal noise about a linear mean; its log density."""
    factor = np.array([[0.3, 0.0], [0.4, 0.2]])
    mean = theta @ np.array([[1.0, 0.5], [0.0, -1.0]]) + np.array([100.0, 0.0])
    noise = rng.standard_normal((len(theta), 2))
    return mean + noise @ factor.T, norm.logpdf(noise).sum(axis=1) - np.log(np.diag(factor)).sum(), mean, factor


def spreading(rng, theta):
    """Mean and spread both depend on the parameters; independent noise."""
    mean = np.stack([theta[:, 0], theta[:, 1] ** 2], axis=1)
    sd = np.stack([np.exp(theta[:, 1]), 0.3 * np.exp(0.5 * theta[:, 0])], axis=1)
    x = mean + sd * rng.standard_normal(mean.shape)
    return x, norm.logpdf(x, mean, sd).sum(axis=1)


def turning(rng, theta):
    """A correlation that depends on a parameter."""
    rho = np.tanh(theta[:, 1])
    first = rng.standard_normal(len(theta))
    second = rho * first + np.sqrt(1.0 - rho**2) * rng.standard_normal(len(theta))
    log_density = norm.logpdf(first) + norm.logpdf(second, rho * first, np.sqrt(1.0 - rho**2))
    return theta[:, :1] + np.stack([first, second], axis=1), log_density


def counting(rng, theta):
    rates = np.exp(np.stack([theta[:, 0], 1.0 + 0.5 * theta[:, 1]], axis=1))
    x = rng.poisson(rates).astype(float)
    return x, poisson.logpmf(x, rates).sum(axis=1), rates


def two_scales(rng, theta):
    """Noise of one scale for all coordinates: uncorrelated, far from independent."""
    scale = rng.choice([1.0, 0.1], (len(theta), 1))
    x = theta + scale * rng.standard_normal(theta.shape)
    parts = [norm.logpdf(x, theta, s).sum(axis=1) + np.log(0.5) for s in (1.0, 0.1)]
    return x, np.logaddexp(*parts)


@functools.cache
def fitted(simulate):
    rng, theta = fresh(1, 1000, 2)
    return ALONE.fit(theta, simulate(rng, theta)[0], rng)


def test_linear_with_correlated_noise():
    fit = fitted(linear)
    rng, theta = fresh(2, 2000, 2)
    x, exact, mean, factor = linear(rng, theta)
    assert abs(gap(fit, theta, x, exact)) < 0.03
    draws = np.mean([fit.sample(theta, rng) for _ in range(50)], axis=0)
    assert np.abs(draws - mean).max() < 0.3
    residuals = np.vstack([fit.sample(theta, rng) - mean for _ in range(10)])
    # Three standard errors of a variance of .2 that is learned from a thousand residuals.
    np.testing.assert_allclose(np.cov(residuals.T), factor @ factor.T, atol=0.027)


# Of two scales, normal residuals, or independent mixtures, are .3 off.
@pytest.mark.parametrize("simulate", [spreading, turning, two_scales])
@pytest.mark.long
def test_noise_that_depends_on_the_parameters_or_on_other_noise(simulate):
    fit = fitted(simulate)
    rng, theta = fresh(2, 2000, 2)
    assert abs(gap(fit, theta, *simulate(rng, theta))) < 0.08


def test_counts_have_probabilities():
    fit = fitted(counting)
    rng, theta = fresh(2, 1000, 2)
    theta = np.clip(theta, -2.0, 2.0)
    x, exact, rates = counting(rng, theta)
    assert abs(gap(fit, theta, x, exact)) < 0.1
    some = theta[:5]
    grid = np.stack(np.meshgrid(np.arange(60.0), np.arange(60.0)), axis=-1).reshape(-1, 2)
    totals = [np.exp(fit.log_density(np.tile(t, (len(grid), 1)), grid)).sum() for t in some]
    np.testing.assert_allclose(totals, 1.0, atol=0.02)
    draws = np.mean([fit.sample(theta, rng) for _ in range(100)], axis=0)
    assert np.median(np.abs(draws / rates - 1.0)) < 0.1
    assert (fit.sample(theta, rng) % 1.0 == 0.0).all()
    assert (fit.log_density(theta[:3], np.array([0.5, 1.0])) == -np.inf).all()


def test_replicates_know_the_shape_of_noise_no_better_than_simulations_do():
    rng, theta = fresh(4, 500, 1)
    fit = LearnedLikelihood().fit(theta, theta + rng.standard_exponential((500, 1)), rng)

    def high(number):
        noise = fit.density.residuals.one_of(number).sample(50_000, rng)[:, 0]
        return np.mean(noise > noise.mean() + 2.0 * noise.std())

    shares = [high(number) for number in range(1, 1 + fit.num_replicates)]
    # exp(-3) of an exponential distribution is beyond two spreads; so is a binomial share of 500 draws of it.
    assert np.mean(shares) == pytest.approx(np.exp(-3.0), abs=0.02)
    assert 0.3 < np.std(shares) / np.sqrt(0.05 * 0.95 / 500.0) < 2.0


def ring(rng):
    """Noise on a circle, whose two residuals are independent of nothing."""
    angles = rng.uniform(0.0, 2.0 * np.pi, 400)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.1 * rng.standard_normal((400, 2))


@pytest.mark.parametrize(
    ("noise", "family"), [(lambda rng: rng.standard_exponential((400, 2)), Marginals), (ring, Joint)]
)
def test_replicates_are_averaged_as_they_are_one_by_one(noise, family):
    rng, theta = fresh(4, 400, 2)
    summaries = theta + noise(rng)
    fit = LearnedLikelihood(num_replicates=3).fit(theta, summaries, rng)
    assert isinstance(fit.density.residuals, family)
    places, given = theta[:5] + 0.1, fit.given(summaries[:5])
    totals = [fit.replicate(i).log_density(places, summaries[:5]).sum() for i in range(3)]
    found = given.averaged(places, gradient=True)
    assert found.rows.sum() == pytest.approx(np.log(np.mean(np.exp(totals))))
    numeric = central_differences(lambda flat: given.averaged(flat.reshape(5, 2)).rows.sum(), places.ravel())
    np.testing.assert_allclose(found.joint_slopes.ravel(), numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "d", "share", "bound"), [(500, 10, 0.0, 0.12), (800, 2, 0.01, 0.06)])
def test_many_dimensions_and_gross_outliers(n, d, share, bound):
    """Least squares with all coefficients free would be 10 * 12 / (2 * 500) = .12 off."""
    rng, theta = fresh(1, n, d)
    x = theta + 0.3 * rng.standard_normal(theta.shape)
    bad = rng.random(n) < share
    x[bad] += 300.0 * rng.standard_normal((bad.sum(), d))
    fit = ALONE.fit(theta, x, rng)
    rng, theta = fresh(2, 2000, d)
    x = theta + 0.3 * rng.standard_normal(theta.shape)
    assert abs(gap(fit, theta, x, norm.logpdf(x, theta, 0.3).sum(axis=1))) < bound


@pytest.mark.parametrize("simulate", [linear, spreading, turning, counting, two_scales])
def test_gradient_is_the_derivative(simulate):
    fit = fitted(simulate)
    rng, theta = fresh(3, 40, 2)
    x = simulate(rng, theta)[0]
    value, gradient = fit.log_density_and_gradient(theta, x)
    np.testing.assert_array_equal(value, fit.log_density(theta, x))
    assert_derivative(gradient, lambda places: fit.log_density(places, x), theta, rtol=1e-4, atol=1e-5)


def test_one_observation_for_all_and_one_for_each_in_any_units():
    fit = fitted(linear)
    rng, theta = fresh(3, 6, 2)
    x = linear(rng, theta)[0]
    each = [fit.log_density(theta[i : i + 1], x[i])[0] for i in range(6)]
    np.testing.assert_allclose(fit.log_density(theta, x), each, rtol=1e-10)
    np.testing.assert_allclose(fit.log_density(theta, np.tile(x[0], (6, 1))), fit.log_density(theta, x[0]), rtol=1e-10)
    rng, theta = fresh(1, 300, 2)
    x = spreading(rng, theta)[0]
    given = (theta, 1.0), (theta, 1e6), (theta, 1e-6), (1e3 * theta - 5.0, 1.0)
    fits = [ALONE.fit(places, x * unit, np.random.default_rng(1)) for places, unit in given]
    plain, *others = (f.log_density(p, x * unit) + 2.0 * np.log(unit) for f, (p, unit) in zip(fits, given, strict=True))
    np.testing.assert_allclose(others, np.tile(plain, (3, 1)), atol=1e-3)


def test_failed_simulations_constants_what_cannot_be_and_what_is_far_from_all_simulations():
    rng, theta = fresh(1, 400, 2)
    x = np.hstack([theta + 0.3 * rng.standard_normal(theta.shape), np.full((400, 1), 7.0)])
    x[:30, 1] = np.nan
    fit = ALONE.fit(theta, x, rng)
    assert fit.success is not None
    value, gradient = fit.log_density_and_gradient(theta[:3], np.array([0.0, 0.0, 7.0]))
    assert np.isfinite(value).all()
    value, gradient = fit.log_density_and_gradient(theta[:3], np.array([0.0, 0.0, 7.1]))
    assert (value == -np.inf).all()
    assert (gradient == 0.0).all()
    assert (fit.sample(theta[:5], rng)[:, 2] == 7.0).all()
    rng = np.random.default_rng(2)
    parameters = rng.normal(size=(200, 2))
    fit = ALONE.fit(parameters, parameters**2 + 0.1 * rng.normal(size=(200, 2)), rng)
    far = np.array([[1e4, 0.0], [1e60, -1e60], [1e160, 1e200], [-1e307, 1e307]])
    density, slope = fit.log_density_and_gradient(far, np.array([0.3, 0.1]))
    assert (density < -100.0).all()
    assert np.isfinite(slope).all()


def test_weights_say_which_simulations_count():
    rng, theta = fresh(1, 600, 1)
    biased = rng.random(600) < 0.5
    x = theta + 0.3 * rng.standard_normal(theta.shape) + 5.0 * biased[:, None]
    fit = ALONE.fit(theta, x, rng, weights=np.where(biased, 1e-3, 1.0))
    draws = fit.sample(theta, rng) - theta
    assert abs(np.median(draws)) < 0.1


def test_held_out_simulations_are_covered_and_an_observation_has_a_place():
    fit = fitted(spreading)
    assert fit.held_out.shape == (200,)
    assert kstest(fit.held_out, "uniform").pvalue > 1e-3
    assert abs((fit.held_out >= 0.05).mean() - 0.95) < 0.06
    fit = fitted(linear)
    rng = np.random.default_rng(4)
    here = np.zeros((50, 2))
    assert fit.place_of(np.array([100.0, 0.0]), here, rng) > 0.3
    # Each by itself is ordinary, together they are not: the noise has correlation .9.
    assert fit.place_of(np.array([100.4, -0.5]), here, rng) < 0.01
    assert fit.place_of(np.array([105.0, 0.0]), here, rng) < 0.01


def test_folds_leave_out_each_simulation_once_and_have_one_blas_thread(monkeypatch):
    """Rounding depends on the number of threads, and a generator runs after its decorator has left."""
    threads = []

    def watched(*args, learn=learned.learn_by_plan):
        threads.append({b["num_threads"] for b in threadpool_info() if b["user_api"] == "blas"})
        return learn(*args)

    rng, theta = fresh(1, 200, 2)
    x = theta + 0.1 * rng.standard_normal((200, 2))
    fit = LearnedLikelihood(num_replicates=2).fit(theta, x, rng)
    monkeypatch.setattr(learned, "learn_by_plan", watched)
    with threadpool_limits(2, user_api="blas"):
        folds = list(LearnedLikelihood().fit_folds(fit, theta, x, np.random.default_rng(1), 4))
    assert threads == 4 * [{1}]
    assert sorted(np.concatenate([rows for rows, _ in folds])) == list(range(200))
    changed = x.copy()
    changed[folds[0][0]] += 3.0  # what is left out does not matter
    again = next(LearnedLikelihood().fit_folds(fit, theta, changed, np.random.default_rng(1), 4))
    np.testing.assert_array_equal(*(fold[1].log_density(theta[:5], x[:5]) for fold in (folds[0], again)))


def test_mistakes_are_named():
    rng, theta = fresh(1, 100, 2)
    x = linear(rng, theta)[0]
    fit = ALONE.fit(theta, x, rng)
    for message, call in (
        (r"3 dimensions .* 2", lambda: fit.log_density(np.zeros((3, 3)), x[0])),
        ("observed must have shape", lambda: fit.log_density(theta, np.zeros(3))),
        ("summaries must have", lambda: ALONE.fit(theta, x[:50], rng)),
        ("made at 5 different parameters", lambda: ALONE.fit(np.repeat(theta[:5], 20, axis=0), x, rng)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


SETTINGS = LearnedLikelihood()


def test_a_logistic_curve_is_learned_on_an_odd_scale_and_nothing_of_what_is_certain(rng):
    parameters = rng.normal(3e4, 1e4, (2000, 1))
    happened = rng.random(2000) < expit(2.0 * (parameters[:, 0] / 1e4 - 3.0))
    chance = SETTINGS.fit_chance(parameters, happened, rng)
    z = np.linspace(-1.5, 1.5, 9)
    found = chance.log_probability(3e4 + 1e4 * z[:, None])
    np.testing.assert_allclose(found, log_expit(2.0 * z), atol=0.25)
    spread = np.std([chance.replicate(i).log_probability(3e4 + 1e4 * z[:, None]) for i in range(8)], axis=0)
    assert 0.01 < spread[4] < 0.1  # the standard error of the log probability in the middle is .03 to .05
    assert SETTINGS.fit_chance(np.ones((30, 1)), np.ones(30), rng) is None
    assert SETTINGS.fit_chance(np.ones((30, 1)), np.zeros(30), rng) is None


def test_a_bump_in_two_dimensions_is_learned_and_that_nothing_happens_is_exponentially_unlikely(rng):
    parameters = rng.standard_normal((1500, 2))

    def exact(places):
        return 2.0 - 3.0 * (places[:, 0] - places[:, 1] - 0.5) ** 2

    happened = rng.random(1500) < expit(exact(parameters))
    chance = SETTINGS.fit_chance(parameters, happened, rng)
    places = np.array([[0.5, 0.0], [0.0, -0.5], [1.0, 0.0], [0.0, 0.2], [-0.5, -0.5]])
    np.testing.assert_allclose(np.exp(chance.log_probability(places)), expit(exact(places)), atol=0.1)
    # No event of a Poisson process, by the logarithm of its rate; a logit would fall to -5, not to -20.
    rates = np.concatenate([rng.gamma(1.0, 1.0, 200), rng.gamma(1.0, 0.1, 800)])
    chance = SETTINGS.fit_chance(np.log(rates)[:, None], rng.random(1000) < np.exp(-10.0 * rates), rng)
    found = np.array([0.003, 0.03, 0.1, 0.3, 1.0, 2.0])
    np.testing.assert_allclose(chance.log_probability(np.log(found)[:, None]), -10.0 * found, rtol=0.3)


@pytest.fixture(scope="module")
def failing():
    """Simulations of a normal mean that fail more often the larger it is; its unit is odd."""
    rng = np.random.default_rng(3)
    mean = rng.standard_normal((1200, 1))
    summaries = mean + 0.5 * rng.standard_normal((1200, 1))
    summaries[rng.random(1200) > expit(-3.0 * mean[:, 0])] = np.nan
    return LearnedLikelihood().fit(1e3 * mean - 2e3, summaries, rng)


def test_the_density_of_simulators_that_fail_has_the_chance_of_success(failing):
    mean = np.array([[-1.0], [0.0], [0.5], [1.0]])
    places = 1e3 * mean - 2e3
    exact = stats.norm(mean[:, 0], 0.5).logpdf(0.3) + log_expit(-3.0 * mean[:, 0])
    np.testing.assert_allclose(failing.log_density(places, [0.3]), exact, atol=0.5)
    value, gradient = failing.log_density_and_gradient(places, [0.3])
    np.testing.assert_allclose(value, failing.log_density(places, [0.3]))
    assert_derivative(1e3 * gradient, lambda m: failing.log_density(1e3 * m, [0.3]), mean - 2.0, rtol=1e-4, atol=1e-5)
    assert failing.replicate(0).success is not failing.success
    rows = np.array([[0.1], [-2.0]])
    found = failing.log_densities(places, rows)
    for k, row in enumerate(rows):
        np.testing.assert_allclose(found[k], failing.log_density(places, row))


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_a_rough_probability_stays_where_cases_do_not_tell_and_is_corrected_where_they_do(rng, share):
    """Nineteen of twenty; the rough one is right, or .4 times that. Below .5 no case of 1,000 happened."""

    def exact(z):
        return stats.binom.logpmf(19, 20, expit(1.5 * z))

    z = rng.normal(1.2, 0.9, 1000)
    happened = rng.random(1000) < np.exp(exact(z))
    chance = SETTINGS.fit_chance(z[:, None], happened, rng, rough=exact(z) + np.log(share))
    places = np.array([1.0, 1.5, 2.0, 2.5])
    found = chance.log_probability(places[:, None], exact(places) + np.log(share))
    np.testing.assert_allclose(found, exact(places), atol=0.3)
    assert chance.log_probability(np.array([[-1.0]]), exact(np.array([-1.0])))[0] < -25.0  # -29.5; a plain logit: -6


@pytest.mark.parametrize("seed", [7, 8])
def test_parameters_with_long_tails_do_not_bend_a_line(seed):
    rng = np.random.default_rng(seed)
    location = np.concatenate([rng.normal(2.0, 0.5, 600), 5.0 * rng.standard_cauchy(200)])
    scale = np.concatenate([np.exp(rng.normal(0.0, 0.2, 600)), np.abs(5.0 * rng.standard_cauchy(200))])
    summaries = rng.normal(location, 0.2 * scale)[:, None]
    fit = LearnedLikelihood().fit(np.column_stack([location, np.log(scale)]), summaries, rng)
    location, scale = rng.normal(2.0, 0.5, 300), np.exp(rng.normal(0.0, 0.2, 300))
    new = rng.normal(location, 0.2 * scale)
    lost = stats.norm.logpdf(new, location, 0.2 * scale)
    lost -= fit.log_density(np.column_stack([location, np.log(scale)]), new[:, None])
    assert lost.mean() < 0.1
