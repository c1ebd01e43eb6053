"""The probability of an event given parameters, and its place in a learned likelihood."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit

from pymc_kernel.likelihood_free import LearnedLikelihood
from tests.reference.differences import assert_derivative

SETTINGS = LearnedLikelihood()


def test_a_logistic_curve_is_learned_on_an_odd_scale(rng):
    parameters = rng.normal(3e4, 1e4, (2000, 1))
    happened = rng.random(2000) < expit(2.0 * (parameters[:, 0] / 1e4 - 3.0))
    chance = SETTINGS.fit_chance(parameters, happened, rng)
    z = np.linspace(-1.5, 1.5, 9)
    found = chance.log_probability(3e4 + 1e4 * z[:, None])
    np.testing.assert_allclose(found, log_expit(2.0 * z), atol=0.25)
    spread = np.std([chance.replicate(i).log_probability(3e4 + 1e4 * z[:, None]) for i in range(8)], axis=0)
    assert 0.01 < spread[4] < 0.1  # the standard error of the log probability in the middle is .03 to .05


def test_a_bump_in_two_dimensions_is_learned(rng):
    parameters = rng.standard_normal((1500, 2))

    def exact(places):
        return 2.0 - 3.0 * (places[:, 0] - places[:, 1] - 0.5) ** 2

    happened = rng.random(1500) < expit(exact(parameters))
    chance = SETTINGS.fit_chance(parameters, happened, rng)
    places = np.array([[0.5, 0.0], [0.0, -0.5], [1.0, 0.0], [0.0, 0.2], [-0.5, -0.5]])
    np.testing.assert_allclose(np.exp(chance.log_probability(places)), expit(exact(places)), atol=0.1)


def test_gradient_by_finite_differences(rng):
    parameters = rng.normal([1.0, -2e3], [0.5, 1e3], (400, 2))
    z = (parameters - [1.0, -2e3]) / [0.5, 1e3]
    chance = SETTINGS.fit_chance(parameters, rng.random(400) < expit(z[:, 0] - z[:, 1] ** 2), rng)
    places = parameters[:20]
    [value], [gradient] = chance.evaluate(places, True, 1)
    np.testing.assert_allclose(value, chance.log_probability(places))
    unit = np.array([0.5, 1e3])
    assert_derivative(gradient * unit, lambda u: chance.log_probability(u * unit), places / unit, rtol=1e-4, atol=1e-6)


def test_that_nothing_happens_is_exponentially_unlikely_beyond_all_cases(rng):
    """No event of a Poisson process, by the logarithm of its rate; a logit would fall to -5, not to -20."""
    rates = np.concatenate([rng.gamma(1.0, 1.0, 200), rng.gamma(1.0, 0.1, 800)])
    chance = SETTINGS.fit_chance(np.log(rates)[:, None], rng.random(1000) < np.exp(-10.0 * rates), rng)
    found = np.array([0.003, 0.03, 0.1, 0.3, 1.0, 2.0])
    np.testing.assert_allclose(chance.log_probability(np.log(found)[:, None]), -10.0 * found, rtol=0.3)


def test_what_is_certain_is_not_learned(rng):
    assert SETTINGS.fit_chance(np.ones((30, 1)), np.ones(30), rng) is None
    assert SETTINGS.fit_chance(np.ones((30, 1)), np.zeros(30), rng) is None


@pytest.fixture(scope="module")
def failing():
    """Simulations of a normal mean that fail more often the larger it is."""
    rng = np.random.default_rng(3)
    parameters = rng.standard_normal((1200, 1))
    summaries = parameters + 0.5 * rng.standard_normal((1200, 1))
    summaries[rng.random(1200) > expit(-3.0 * parameters[:, 0])] = np.nan
    return LearnedLikelihood().fit(parameters, summaries, rng)


def test_the_density_of_simulators_that_fail_has_the_chance_of_success(failing):
    places = np.array([[-1.0], [0.0], [0.5], [1.0]])
    exact = stats.norm(places[:, 0], 0.5).logpdf(0.3) + log_expit(-3.0 * places[:, 0])
    np.testing.assert_allclose(failing.log_density(places, [0.3]), exact, atol=0.5)
    value, gradient = failing.log_density_and_gradient(places, [0.3])
    np.testing.assert_allclose(value, failing.log_density(places, [0.3]))
    assert_derivative(gradient, lambda p: failing.log_density(p, [0.3]), places, rtol=1e-4, atol=1e-5)
    assert failing.replicate(0).success is not failing.success


def test_densities_of_pairs_are_those_of_each(failing):
    places, rows = np.array([[-1.0], [0.0], [0.5]]), np.array([[0.1], [-2.0]])
    found = failing.log_densities(places, rows)
    for k, row in enumerate(rows):
        np.testing.assert_allclose(found[k], failing.log_density(places, row))


def test_folds_leave_out_each_simulation_once(rng):
    parameters = rng.standard_normal((200, 2))
    summaries = parameters + 0.1 * rng.standard_normal((200, 2))
    fit = LearnedLikelihood(num_replicates=2).fit(parameters, summaries, rng)
    changed = summaries.copy()
    folds = list(LearnedLikelihood().fit_folds(fit, parameters, summaries, np.random.default_rng(1), 4))
    assert sorted(np.concatenate([rows for rows, _ in folds])) == list(range(200))
    changed[folds[0][0]] += 3.0  # what is left out does not matter
    again = next(LearnedLikelihood().fit_folds(fit, parameters, changed, np.random.default_rng(1), 4))
    places = parameters[:5]
    np.testing.assert_array_equal(
        folds[0][1].log_density(places, summaries[:5]), again[1].log_density(places, summaries[:5])
    )


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
