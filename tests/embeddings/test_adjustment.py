import numpy as np
import pytest

from pymc_kernel.embeddings.adjustment import adjusted, order_statistic
from tests.reference import slow_embeddings as slow

RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    """Begin each test at the same state: workers share the tests out as they come."""
    global RNG
    RNG = np.random.default_rng(1)


@pytest.mark.parametrize(("k", "p", "q"), [(40, 2, 2), (30, 1, 3), (60, 3, 1)])
def test_it_equals_one_regression_after_another(k, p, q):
    moves = RNG.standard_normal((k, q))
    errors = RNG.standard_normal((k, p)) + np.sin(moves[:, :1])
    weights = RNG.random(k)
    np.testing.assert_allclose(adjusted(errors, moves, weights), slow.adjusted(errors, moves, weights), atol=1e-8)


def test_each_branch_goes_its_own_way():
    moves = RNG.uniform(-1.0, 1.0, (200, 1))
    sign = RNG.choice([-1.0, 1.0], (200, 1))
    errors = sign * (2.0 + moves) + 0.001 * RNG.standard_normal((200, 1))
    found = adjusted(errors, moves, np.ones(200))
    assert np.abs(found - 2.0 * sign).max() < 0.1  # they lean a little to the slope of all, zero
    assert np.abs(errors - 2.0 * sign).max() > 0.9


def test_one_slope_is_regression_adjustment():
    moves = RNG.uniform(-1.0, 1.0, (300, 2))
    slopes = np.array([[1.0, -0.5], [0.3, 2.0]])
    noise = 0.1 * RNG.standard_normal((300, 2))
    found = adjusted(moves @ slopes + noise, moves, np.ones(300))
    # Neighbors of an error share some of its noise, which slopes take for an effect.
    assert np.std(found - noise) < 0.05
    assert np.std(found) < 1.2 * np.std(noise)


@pytest.mark.parametrize("moves", [np.zeros((50, 2)), RNG.standard_normal((50, 21)), np.full((50, 1), 3.0)])
def test_nothing_to_learn_from_leaves_errors_as_they_are(moves):
    errors = RNG.standard_normal((50, 2))
    np.testing.assert_allclose(adjusted(errors, moves, np.ones(50)), errors)
    np.testing.assert_array_equal(adjusted(errors[:4], moves[:4], np.ones(4)), errors[:4])


def test_errors_that_are_all_the_same_stay():
    errors = np.full((50, 2), 0.5)
    np.testing.assert_allclose(adjusted(errors, RNG.standard_normal((50, 2)), np.ones(50)), errors, atol=1e-9)


def test_one_error_gone_wild_moves_no_other():
    moves = RNG.uniform(-1.0, 1.0, (100, 1))
    sign = RNG.choice([-1.0, 1.0], (100, 1))
    errors = sign * (2.0 + moves)
    errors[5] = 1e4
    found = np.delete(adjusted(errors, moves, np.ones(100)) - 2.0 * sign, 5)
    assert np.median(np.abs(found)) < 0.2 < np.median(np.abs(errors - 2.0 * sign))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_order_statistics(rng, size, is_rounded):
    values, work = rng.standard_normal(size), np.empty(size)
    values = np.round(values) if is_rounded else values
    given = values.copy()
    found = [order_statistic(values, rank, work) for rank in range(size)]
    np.testing.assert_array_equal(found, np.sort(values))
    np.testing.assert_array_equal(values, given)
