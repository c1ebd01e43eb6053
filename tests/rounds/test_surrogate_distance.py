import numpy as np
import pytest
from scipy.stats import norm

from pymc_kernel.rounds.surrogate_distance import distance_of


def shifted(num_draws, shift, seed=0):
    """Draws of standard normal distributions, and log ratios to those with a mean of ``shift`` (d,)."""
    rng = np.random.default_rng(seed)
    shift = np.asarray(shift)
    draws, particles = rng.standard_normal((num_draws, shift.size)), rng.standard_normal((2000, shift.size))
    return draws @ shift - 0.5 * shift @ shift, draws, particles


def total_variation(shift):
    return 2.0 * norm.cdf(0.5 * shift) - 1.0


def test_joint_and_marginal_distances_of_shifted_normal_distributions():
    shift = np.array([0.6, 0.0, -0.3, 0.0])
    ratios, draws, particles = shifted(20_000, shift)
    found = distance_of(ratios + 7.0, np.zeros(20_000), draws, particles, 0.0)
    np.testing.assert_allclose(found.total_variation, total_variation(np.linalg.norm(shift)), atol=0.01)
    wanted = 0.5 * np.sqrt(2.0 / np.pi) * np.sqrt((np.exp(shift**2) - 1.0).max())  # of a variance of E(w | x_j)
    np.testing.assert_allclose(found.marginal, wanted, atol=0.02)
    np.testing.assert_allclose(found.marginal, total_variation(np.abs(shift)).max(), atol=0.05)
    np.testing.assert_allclose(found.effective_share, np.exp(-shift @ shift), atol=0.05)
    assert found.error < 0.01


def surely(found):
    return found.marginal - found.marginal_error


def test_one_wrong_margin_of_seven_is_judged_by_itself():
    """Half a standard deviation off in one parameter is said; a tenth of one in each is not, in nine of ten."""
    said = []
    for shift in (np.eye(7)[3] * 0.55, np.full(7, 0.1)):
        drawn = [shifted(30, shift, seed) for seed in range(200)]
        said.append(np.mean([surely(distance_of(r, np.zeros(30), x, p, 0.0)) > 0.1 for r, x, p in drawn]))
    assert said[0] > 0.95
    assert said[1] < 0.02


def test_a_width_that_is_wrong_is_seen():
    rng = np.random.default_rng(1)
    draws, particles = rng.standard_normal((20_000, 2)), rng.standard_normal((2000, 2))
    ratios = norm(0.0, 0.6).logpdf(draws).sum(axis=1) - norm(0.0, 1.0).logpdf(draws).sum(axis=1)
    found = distance_of(ratios, np.zeros(20_000), draws, particles, 0.0)
    grid = np.linspace(-8.0, 8.0, 4001)
    exact = 0.5 * np.abs(norm(0.0, 0.6).pdf(grid) - norm(0.0, 1.0).pdf(grid)).sum() * (grid[1] - grid[0])
    np.testing.assert_allclose(found.marginal, exact, atol=0.05)


def test_what_caution_takes_off_is_no_error():
    ratios, draws, particles = shifted(400, [1.0, 0.5])
    found = distance_of(ratios, -ratios, draws, particles, 0.0)
    np.testing.assert_allclose([found.total_variation, found.marginal], 0.0, atol=1e-12)
    np.testing.assert_allclose(
        distance_of(ratios, -2.0 * ratios, draws, particles, 0.0).total_variation,
        0.5 * np.abs(np.exp(ratios) / np.exp(ratios).mean() - np.exp(2 * ratios) / np.exp(2 * ratios).mean()).mean(),
    )


def test_chance_is_taken_off_the_marginal_distance():
    shift = np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    found = [distance_of(r, np.zeros(30), x, p, 0.0) for r, x, p in (shifted(30, shift, s) for s in range(40))]
    exact = total_variation(shift).max()  # the larger one of two is what is said, so that it is a little more
    assert exact < np.mean([f.marginal for f in found]) < exact + 0.05
    assert np.mean([surely(f) for f in found]) < exact
    assert all(f.marginal <= f.total_variation for f in found)


def test_weights_that_depend_on_no_coordinate_make_no_marginal_distance():
    """Chance alone is taken for a distance in one of ten."""
    rng = np.random.default_rng(2)
    found = [
        distance_of(
            0.5 * rng.standard_normal(30), np.zeros(30), *(rng.standard_normal((n, 6)) for n in (30, 2000)), 0.0
        )
        for _ in range(300)
    ]
    assert 0.03 < np.mean([surely(f) > 0.0 for f in found]) < 0.17


def test_mass_that_was_found_since_is_missing():
    ratios, draws, particles = shifted(40, [0.1, 0.0])
    none = np.zeros(40)
    before = distance_of(ratios, none, draws, particles, 0.0, none)
    assert before.total_variation < 0.1
    found = distance_of(ratios, none, draws, particles, 0.0, np.full(40, np.log(0.25)))
    assert 0.65 < found.total_variation < 0.75
    assert found.marginal == found.total_variation
    assert found.error == 0.0 < before.error  # a lower bound
    lost = distance_of(ratios, none, draws, particles, 0.0, np.full(40, np.log(1.5)))
    np.testing.assert_allclose(lost.total_variation, before.total_variation)


def test_noise_of_the_values_is_no_error():
    ratios, draws, particles = shifted(400, [0.5, 0.0])
    noisy = ratios + np.random.default_rng(2).normal(0.0, 2.0, 400)
    found = distance_of(noisy, np.zeros(400), draws, particles, 2.0)
    assert found.marginal < 0.2
    assert distance_of(noisy, np.zeros(400), draws, particles, 1e-3).total_variation > 0.5
    assert found.total_variation < 0.5
    larger = distance_of(noisy + draws[:, 1], np.zeros(400), draws, particles, 2.0)
    assert larger.marginal > found.marginal + 0.05


@pytest.mark.parametrize("finite", [1, 7])
def test_too_few_draws_say_nothing(finite):
    ratios, draws, particles = shifted(7, [0.5, 0.0])
    ratios[finite:] = -np.inf
    assert np.isnan(distance_of(ratios, np.zeros(7), draws, particles, 0.0).total_variation)


def test_draws_without_density_are_a_distance():
    _, draws, particles = shifted(40, [0.0, 0.0])
    ratios = np.where(np.arange(40) % 4 == 0, -np.inf, 0.0)
    np.testing.assert_allclose(distance_of(ratios, np.zeros(40), draws, particles, 0.0).total_variation, 0.25)


def test_what_noise_adds_by_chance_is_in_the_error():
    """Exact values with noise are hardly ever surely far; normal errors as large as the noise are, most of the time."""
    rng, surely_far = np.random.default_rng(3), []
    for spread in (0.0, 1.0):
        far = 0
        for _ in range(200):
            draws, particles = rng.standard_normal((40, 2)), rng.standard_normal((2000, 2))
            ratios = rng.normal(0.0, np.hypot(1.0, spread), 40)
            found = distance_of(ratios, np.zeros(40), draws, particles, 1.0)
            assert 0.0 <= found.error <= found.total_variation
            far += found.total_variation - found.error > 0.05
        surely_far.append(far / 200)
    assert surely_far[0] < 0.16  # beyond one standard error of a normal distribution
    assert surely_far[1] > 0.85
