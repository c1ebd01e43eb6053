import numpy as np
import pytest

from pymc_kernel import scores as S
from tests.reference.bananas import bent_draws, bent_log_density, bent_score


def test_scores_and_what_is_said_of_them(rng):
    x = bent_draws(rng, 400)
    values, truth = bent_log_density(x), bent_score(x)
    found = S.held_out_scores(x, values + 1e4, S.chain_folds(4, 100))
    off = np.sqrt(((found.scores - truth) ** 2).sum() / (truth**2).sum())
    assert off < 0.05
    assert off / 4.0 < found.score_error < 4.0 * off
    assert found.log_density_error < 0.05
    assert found.overlap > 0.99
    assert found.effective_share > 0.99
    assert found.num_values == 400
    assert found.weights.mean() == pytest.approx(1.0)


def test_a_draw_has_no_say_in_its_own_score(rng):
    x = bent_draws(rng, 200)
    values = bent_log_density(x)
    folds = S.chain_folds(2, 100)
    before = S.held_out_scores(x, values, folds)
    values[folds == 1] += rng.normal(size=(folds == 1).sum())
    after = S.held_out_scores(x, values, folds)
    np.testing.assert_array_equal(after.scores[folds == 1], before.scores[folds == 1])
    assert np.abs(after.scores[folds != 1] - before.scores[folds != 1]).max() > 0.01
    assert np.abs(after.weights - before.weights)[folds == 1].max() > 0.1


def test_repeated_draws_are_left_out_together(rng):
    x = np.repeat(bent_draws(rng, 100), 3, axis=0)
    values = bent_log_density(x)
    found = S.held_out_scores(x, values, np.arange(300) % 4)
    once = S.held_out_scores(x[::3], values[::3], (np.arange(300) % 4)[::3])
    np.testing.assert_allclose(found.scores[::3], once.scores)
    assert found.num_values == 100


def test_noise_shows_in_the_weights_and_units_in_nothing(rng):
    x = bent_draws(rng, 300)
    values = bent_log_density(x)
    noise = rng.normal(0.0, 1.0, 300)
    folds = S.chain_folds(4, 75)
    found = S.held_out_scores(x, values + noise, folds, noisy=True)
    assert found.effective_share < 0.8
    assert np.corrcoef(np.log(found.weights), -noise)[0, 1] > 0.7
    scale = np.array([1e-6, 1e6])
    scaled = S.held_out_scores(x * scale, values + noise, folds, noisy=True)
    np.testing.assert_allclose(scaled.scores * scale, found.scores, rtol=1e-2, atol=1e-2)
    assert scaled.score_error == pytest.approx(found.score_error, rel=0.05)


def test_folds_are_spread_over_each_chain():
    folds = S.chain_folds(3, 100)
    assert folds.shape == (300,)
    first = folds[:100]
    assert all((first[a : a + 50] == k).any() for a in (0, 50) for k in range(4))
    assert (np.diff(first) != 0).sum() < 25  # in blocks
    assert (folds[100:200] == first).all()


def test_values_and_folds_without_meaning_are_refused(rng):
    x = bent_draws(rng, 40)
    values = bent_log_density(x)
    with pytest.raises(ValueError, match="one number for each of 40 points"):
        S.held_out_scores(x, values[:-1], S.chain_folds(1, 40))
    with pytest.raises(ValueError, match="all 40 different points are in one fold"):
        S.held_out_scores(x, values, np.zeros(40, dtype=int))
    values[3] = -np.inf
    with pytest.raises(ValueError, match="1 of 40 values are not finite"):
        S.held_out_scores(x, values, S.chain_folds(1, 40))
