import numpy as np
import pytest
from scipy.special import ndtr

from pymc_kernel.embeddings.local_check import LocalErrors, local_errors, misfit, moves_from

EVEN = np.full(150, 1.0 / 150.0)


def test_an_error_at_the_edge_is_seen_though_the_neighbors_are_right_on_average():
    """All cases on one side of the observation, right in the middle of them, and ever more off towards it."""
    rng = np.random.default_rng(1)
    moves = rng.uniform(0.0, 1.0, (150, 1))
    scores = rng.standard_normal((150, 1)) + 1.6 * (0.5 - moves)
    found = local_errors(ndtr(scores), moves, EVEN)
    assert abs(scores.mean()) < 0.15
    assert found.shift[0] == pytest.approx(0.8, abs=3.0 * found.shift_error[0])
    assert found.shift_error[0] == pytest.approx(2.0 / np.sqrt(150), rel=0.2)  # at the end of a line: twice the mean's
    assert "mean is expected" in misfit(found)


def test_a_spread_that_changes_towards_the_observation_is_seen():
    rng = np.random.default_rng(2)
    moves = rng.uniform(0.0, 1.0, (600, 2))
    scores = rng.standard_normal((600, 1)) * (1.6 - 1.2 * moves[:, :1])
    found = local_errors(ndtr(scores), moves, np.full(600, 1 / 600))
    assert found.spread[0] == pytest.approx(1.6, abs=3.0 * found.spread_error[0])
    assert "true spread is expected" in misfit(found)


def test_right_posteriors_are_left_alone():
    """One false alarm in a hundred: more than nine of three hundred would be one case in four hundred."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(300):
        moves = rng.standard_normal((150, 3)) + rng.standard_normal(3)
        alarms += bool(misfit(local_errors(rng.random((150, 3)), moves, EVEN)))
    assert alarms <= 9


def test_weights_of_cases_count_and_constant_moves_do_no_harm():
    rng = np.random.default_rng(4)
    scores = rng.standard_normal((150, 1))
    scores[75:] += 5.0
    weights = np.r_[np.full(75, 1.0), np.zeros(75)] / 75.0
    found = local_errors(ndtr(scores), np.zeros((150, 2)), weights)
    assert found.shift[0] == pytest.approx(scores[:75].mean())
    assert np.isfinite(found.shift_error).all()


def test_standard_errors_are_the_changes_by_leaving_out_a_case():
    """Of a linear estimate the changes are exactly what leverages and residuals say."""
    rng = np.random.default_rng(6)
    ranks, moves, weights = rng.random((60, 2)), rng.standard_normal((60, 2)), rng.dirichlet(np.full(60, 3.0))
    whole = local_errors(ranks, moves, weights)
    changes = []
    for i in range(60):
        left = np.where(np.arange(60) == i, 0.0, weights)
        changes.append(local_errors(ranks, moves, left / left.sum()).shift - whole.shift)
    np.testing.assert_allclose(whole.shift_error, np.sqrt(np.sum(np.square(changes), axis=0)), rtol=1e-8)


def test_units_of_moves_do_not_matter():
    """Though there are more moves than slopes that so many cases could tell."""
    rng = np.random.default_rng(7)
    ranks, moves = rng.random((150, 1)), rng.standard_normal((150, 12)) + 0.5
    one, other = (local_errors(ranks, moves * units, EVEN) for units in (np.ones(12), np.logspace(-3, 3, 12)))
    np.testing.assert_allclose(np.concatenate(other), np.concatenate(one), rtol=1e-6)


def test_rounding_does_not_part_ties():
    """Cases that are all tied with the observation, but for the last digit: their average is all there is to know."""
    rng = np.random.default_rng(5)
    places = 0.7 + 1e-16 * rng.integers(1, 3, (150, 1))
    moves = moves_from(np.array([0.7]), places)
    scores = rng.standard_normal((150, 1))
    found = local_errors(ndtr(scores), moves, EVEN)
    assert found.shift[0] == pytest.approx(scores.mean())
    assert moves_from(np.zeros(1), np.array([[1e-8], [1.0]]))[0, 0] == 1e-8


def test_small_errors_need_no_warning():
    known = np.full(1, 0.01)
    assert misfit(LocalErrors(np.array([0.15]), known, np.array([1.1]), known)) == ""
    assert "0.35 posterior standard deviations" in misfit(LocalErrors(np.array([-0.35]), known, np.array([1.0]), known))
    nothing = LocalErrors(*np.zeros((2, 1)), np.ones(1), np.zeros(1))
    assert misfit(nothing) == ""
    # What is said is not the small error that is known best.
    both = LocalErrors(np.array([0.1, 0.5]), np.array([0.01, 0.1]), np.array([1.1, 0.5]), np.array([0.01, 0.1]))
    assert "0.50 posterior standard deviations" in misfit(both)
    assert "0.50 times its own" in misfit(both)
