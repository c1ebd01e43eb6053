import numpy as np
from scipy.stats import norm

from pymc_kernel.rounds.surrogate_distance import distance_of


def log_ratios(num_draws, shift, seed=0):
    """At draws of standard normal distributions, to those with a mean of ``shift`` (d,)."""
    shift = np.asarray(shift)
    draws = np.random.default_rng(seed).standard_normal((num_draws, shift.size))
    return draws @ shift - 0.5 * shift @ shift


def total_variation(shift):
    return 2.0 * norm.cdf(0.5 * shift) - 1.0


def test_distance_of_shifted_normal_distributions():
    shift = np.array([0.6, 0.0, -0.3, 0.0])
    found = distance_of(log_ratios(20_000, shift) + 7.0, np.zeros(20_000), 0.0)
    np.testing.assert_allclose(found.total_variation, total_variation(np.linalg.norm(shift)), atol=0.01)
    np.testing.assert_allclose(found.effective_share, np.exp(-shift @ shift), atol=0.05)
    assert found.error < 0.01


def test_the_error_is_that_of_thirty_draws():
    found = [distance_of(log_ratios(30, [0.5, 0.0], seed), np.zeros(30), 0.0) for seed in range(400)]
    spread = np.std([f.total_variation for f in found])
    assert 0.7 * spread < np.mean([f.error for f in found]) < 1.4 * spread


def test_a_width_that_is_wrong_is_seen():
    draws = np.random.default_rng(1).standard_normal(20_000)
    found = distance_of(norm(0.0, 0.6).logpdf(draws) - norm(0.0, 1.0).logpdf(draws), np.zeros(20_000), 0.0)
    grid = np.linspace(-8.0, 8.0, 4001)
    exact = 0.5 * np.abs(norm(0.0, 0.6).pdf(grid) - norm(0.0, 1.0).pdf(grid)).sum() * (grid[1] - grid[0])
    np.testing.assert_allclose(found.total_variation, exact, atol=0.01)


def test_what_caution_takes_off_is_no_error():
    ratios = log_ratios(400, [1.0, 0.5])
    np.testing.assert_allclose(distance_of(ratios, -ratios, 0.0).total_variation, 0.0, atol=1e-12)
    np.testing.assert_allclose(
        distance_of(ratios, -2.0 * ratios, 0.0).total_variation,
        0.5 * np.abs(np.exp(ratios) / np.exp(ratios).mean() - np.exp(2 * ratios) / np.exp(2 * ratios).mean()).mean(),
    )


def test_mass_that_was_found_since_is_missing():
    ratios, none = log_ratios(40, [0.1, 0.0]), np.zeros(40)
    before = distance_of(ratios, none, 0.0, none)
    assert before.total_variation < 0.1
    found = distance_of(ratios, none, 0.0, np.full(40, np.log(0.25)))
    assert 0.65 < found.total_variation < 0.75
    assert found.error == 0.0 < before.error  # a lower bound
    lost = distance_of(ratios, none, 0.0, np.full(40, np.log(1.5)))
    np.testing.assert_allclose(lost.total_variation, before.total_variation)


def test_noise_of_the_values_is_no_error():
    rng = np.random.default_rng(2)
    noisy = log_ratios(400, [0.5, 0.0]) + rng.normal(0.0, 2.0, 400)
    found = distance_of(noisy, np.zeros(400), 2.0)
    assert found.total_variation < 0.5
    assert distance_of(noisy, np.zeros(400), 1e-3).total_variation > 0.5
    larger = distance_of(noisy + 2.0 * rng.standard_normal(400), np.zeros(400), 2.0)
    assert larger.total_variation > found.total_variation + 0.05


def test_what_noise_adds_by_chance_is_in_the_error():
    """Exact values with noise are hardly ever surely far; normal errors as large as the noise are, most of the time."""
    rng, surely_far = np.random.default_rng(3), []
    for spread in (0.0, 1.0):
        far = 0
        for _ in range(200):
            found = distance_of(rng.normal(0.0, np.hypot(1.0, spread), 40), np.zeros(40), 1.0)
            assert 0.0 <= found.error <= found.total_variation
            far += found.total_variation - found.error > 0.05
        surely_far.append(far / 200)
    assert surely_far[0] < 0.16  # beyond one standard error of a normal distribution
    assert surely_far[1] > 0.85


def test_too_few_draws_say_nothing():
    assert np.isnan(distance_of(np.zeros(7), np.zeros(7), 0.0).total_variation)
    assert np.isnan(distance_of(np.full(20, -np.inf), np.zeros(20), 0.0).total_variation)


def test_draws_without_density_are_a_distance():
    ratios = np.where(np.arange(40) % 4 == 0, -np.inf, 0.0)
    np.testing.assert_allclose(distance_of(ratios, np.zeros(40), 0.0).total_variation, 0.25)
