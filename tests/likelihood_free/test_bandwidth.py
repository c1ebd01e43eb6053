import math
from unittest.mock import Mock

import numpy as np
import pytest

from pymc_kernel.likelihood_free import Pilot, choose_bandwidth, explore
from pymc_kernel.likelihood_free.bandwidth import _ridge_fit

SLOPES = np.array([[1.0], [0.5], [0.0]])
NOISE = np.array([[4.0, 1.0, 0.5], [1.0, 1.0, 0.0], [0.5, 0.0, 0.25]])


def linear_pilot(rng, slopes=SLOPES, noise=NOISE, spread=1.0, num_replicates=400):
    """Simulations s = B z + e around the observation zero; positions have the given spread."""
    factor, num_dims = np.linalg.cholesky(noise), slopes.shape[1]

    def simulate(z):
        return z @ slopes.T + rng.standard_normal((len(z), len(slopes))) @ factor.T

    positions, centers = spread * rng.standard_normal((3000, num_dims)), spread * rng.standard_normal((8, num_dims))
    groups = [simulate(np.tile(c, (num_replicates, 1))) for c in centers]
    return Pilot(positions, simulate(positions), centers, groups)


def test_the_kernel_is_narrow_where_the_mean_moves_and_wide_elsewhere_whatever_the_units(rng):
    pilot = linear_pilot(rng)
    found = choose_bandwidth(pilot, np.zeros(3), 1000, 1.5)
    assert found.relative == 0.3
    root = np.linalg.cholesky(NOISE)
    whitened = np.linalg.solve(root, np.linalg.solve(root, found.factor @ found.factor.T).T)
    widths, directions = np.linalg.eigh(whitened)
    # Robust standard deviations of 3,200 residuals: 3 % each.
    assert np.sqrt(widths) == pytest.approx([0.3, 3.0, 3.0], rel=0.1)
    along = np.linalg.solve(root, SLOPES)[:, 0]
    assert abs(directions[:, 0] @ along) / np.linalg.norm(along) > 0.99
    units = np.array([1e-6, 1.0, 1e6])
    scaled = pilot._replace(summaries=pilot.summaries * units, replicates=[s * units for s in pilot.replicates])
    one, other = (choose_bandwidth(p, np.zeros(3), 10, 0.5) for p in (pilot, scaled))
    np.testing.assert_allclose(other.factor, one.factor * units[:, None], rtol=1e-6)
    assert other.relative == pytest.approx(one.relative)


def test_the_variance_of_the_log_estimate_is_what_was_asked_for(rng):
    """For one simulation of d normal summaries at distance zero it is that of chi^2 / (2 c^2): d / (2 c^4)."""
    pilot = linear_pilot(rng, np.eye(2), np.eye(2), spread=0.1, num_replicates=2000)
    found = choose_bandwidth(pilot, np.zeros(2), 1, 4.0)
    assert found.relative == pytest.approx((2 / (2 * 4.0)) ** 0.25, rel=0.05)
    # For more there is no formula.
    more = choose_bandwidth(pilot, np.zeros(2), 5, 0.5)
    assert 0.3 < more.relative < found.relative
    squares = rng.standard_normal((20_000, 5, 2)) ** 2
    logs = np.log(np.exp(-0.5 * squares.sum(axis=2) / more.relative**2).sum(axis=1))
    assert logs.var() == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("log_variance", [1.0, 0.1])
def test_fewer_simulations_take_a_wider_kernel_and_are_told_how_many_would_do(log_variance, rng):
    pilot = linear_pilot(rng, np.eye(4), np.eye(4))
    few, recommended = (choose_bandwidth(pilot, np.zeros(4), n, log_variance) for n in (2, 1000))
    assert few.relative > 0.8 > recommended.relative
    enough = choose_bandwidth(pilot, np.zeros(4), few.recommended, log_variance)
    assert 0.3 < enough.relative < 0.53  # numbers are doubled until they are enough


def test_what_the_model_cannot_produce_and_what_the_kernel_cannot_see_are_measured(rng):
    pilot = linear_pilot(rng, spread=10.0)
    near, far = (choose_bandwidth(pilot, at, 10, 1.5) for at in (np.zeros(3), np.array([0.0, 0.0, 30.0])))
    assert near.offset < 1.0 < 5.0 < far.offset
    assert near.hidden < 1.0
    # Thirty raw numbers whose spread, too, is a parameter: it may be anything, the kernel is none the wiser.
    scales = np.exp(rng.normal(0.0, 0.7, 8))
    raw = linear_pilot(rng, np.ones((30, 1)), np.eye(30), spread=0.2, num_replicates=100)
    raw = raw._replace(replicates=[s * scale for s, scale in zip(raw.replicates, scales, strict=True)])
    # Of 29 numbers a scale is known to one part in the root of 58.
    expected = np.log(scales).std(ddof=1) * math.sqrt(58.0)
    assert expected > 3.0
    assert choose_bandwidth(raw, np.zeros(30), 10, 1.5).hidden == pytest.approx(expected, rel=0.1)
    # Not so where it is the narrow direction's noise that varies.
    other = linear_pilot(rng, np.eye(3)[:, :1], np.eye(3))
    other = other._replace(replicates=[s * [v, 1, 1] for s, v in zip(other.replicates, scales, strict=True)])
    assert choose_bandwidth(other, np.zeros(3), 10, 1.5).hidden < 0.3


def test_skewed_summaries_have_no_correlation_by_that(rng):
    """Twenty exponential numbers with different means at each center; the direction found is that of their sum."""
    rates = np.exp(rng.normal(0.0, 0.25, 1600))
    summaries = rates[:, None] * rng.exponential(size=(1600, 20))
    centers = np.exp(rng.normal(0.0, 0.25, 12))
    groups = [rate * rng.exponential(size=(100, 20)) for rate in centers]
    pilot = Pilot(np.log(rates)[:, None], summaries, np.log(centers)[:, None], groups)
    found = choose_bandwidth(pilot, np.ones(20), 10, 1.5)
    precision = np.linalg.inv(found.factor @ found.factor.T)
    narrow = np.linalg.eigh(precision)[1][:, -1]
    assert abs(narrow.sum()) / math.sqrt(20) > 0.9


def test_more_simulations_than_replicates_are_extrapolated_and_noise_alone_has_hardly_a_regression(rng):
    pilots = [linear_pilot(rng, np.eye(3), np.eye(3), 0.3, n) for n in (100, 2000)]
    few, many = (choose_bandwidth(pilot, np.zeros(3), 400, 1.5) for pilot in pilots)
    assert few.relative == many.relative == 0.3
    # Least squares with thirty inputs would explain six tenths of the fifty outputs.
    inputs, outputs = rng.standard_normal((50, 30)), rng.standard_normal((50, 5))
    assert (_ridge_fit(inputs, outputs, np.full(50, 0.02)) ** 2).mean() < 0.1


def test_rounds_find_a_posterior_far_inside_of_the_prior(rng):
    simulate = Mock(side_effect=lambda z: rng.normal(np.column_stack([z[:, 0], np.exp(z[:, 1])]), 0.1))
    pilot = explore(3.0 * rng.standard_normal((3000, 2)), simulate, np.array([2.0, 5.0]), 3000, 100, rng)
    assert sum(len(call.args[0]) for call in simulate.call_args_list) <= 3000
    assert len(pilot.replicates) == 12
    assert all(s.shape == (100, 2) for s in pilot.replicates)
    # Exact: standard deviations of .1 and .02. To be near is enough: the spread of simulations is what is asked for.
    assert pilot.centers.mean(axis=0) == pytest.approx([2.0, math.log(5.0)], abs=0.1)
    assert (pilot.centers.std(axis=0) < [0.3, 0.15]).all()


def test_failures_constants_and_many_summaries_are_borne(rng):
    def simulate(positions):
        summaries = np.repeat(positions, 40, axis=1) + rng.standard_normal((len(positions), 40))
        summaries[:, 0] = 7.0
        summaries[rng.random(len(positions)) < 0.3, 1] = np.nan
        return summaries

    observed = np.r_[7.0, np.zeros(39)]
    pilot = explore(rng.standard_normal((1000, 1)), simulate, observed, 1000, 100, rng)
    found = choose_bandwidth(pilot, observed, 10, 1.5)
    assert np.isfinite(found.factor).all()
    assert found.relative < 0.5
    with pytest.raises(ValueError, match="only 0 of 200 pilot simulations succeeded"):
        explore(rng.standard_normal((1000, 1)), lambda z: np.full((len(z), 1), np.nan), np.zeros(1), 1000, 100, rng)
    with pytest.raises(ValueError, match="observed must be a vector of numbers"):
        explore(rng.standard_normal((1000, 1)), simulate, np.full(40, 1e200), 1000, 100, rng)
