from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from benchmarks.measures import smallest_bulk_ess
from pymc_kernel import scores as S
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import surrogate_fit
from pymc_kernel.mcmc.conditionally_normal import ConditionallyNormal, Scaling, _Regression, fitted
from tests.mcmc.chains import moved, run, taught
from tests.reference.bananas import bent_draws, bent_log_density
from tests.reference.differences import central_differences

ERRORS = np.array([0.5, 1.0, 2.0])


def assert_normal(*samples):
    for z in samples:
        assert stats.kstest(z, stats.norm.cdf).pvalue > 1e-4


def some_map(rng, d, power=0):
    """Any; where the driver is a scale, it is zero 1 / .2 spreads from the center."""
    to_unit, driver = rng.normal(size=(d - 1, d - 1)), int(rng.integers(d))
    others, center, slopes = np.delete(np.arange(d), driver), rng.normal(size=d), 0.3 * rng.normal(size=(5, d - 1))
    inverse, share, scaling = np.linalg.inv(to_unit), rng.random(d - 1), Scaling(-0.2 if power else -0.8, power)
    log_unit = np.linalg.slogdet(to_unit)[1] - np.log(1.7)
    return ConditionallyNormal(driver, others, center, 1.7, to_unit, inverse, scaling, share, slopes, log_unit)


def neals(x):
    return -0.5 * (x[:, 0] ** 2 / 4.0 + (x[:, 1:] ** 2).sum(axis=1) * np.exp(-x[:, 0]) + (x.shape[1] - 1) * x[:, 0])


def neals_draws(rng, n, d):
    x = rng.normal(size=(n, d)) * [2.0, *np.ones(d - 1)]
    x[:, 1:] *= np.exp(0.5 * x[:, :1])
    return x


def hierarchy_draws(rng, n):
    """Log spread and effects; each is measured once with one of ``ERRORS``, and one was found."""
    log_spread = 0.5 * rng.normal(size=n)
    precision = np.exp(-2.0 * log_spread)[:, None] + ERRORS**-2.0
    return np.column_stack([log_spread, ERRORS**-2.0 / precision + rng.normal(size=(n, 3)) / np.sqrt(precision)])


def hierarchy(x):
    precision = np.exp(-2.0 * x[:, :1]) + ERRORS**-2.0
    off = x[:, 1:] - ERRORS**-2.0 / precision
    return -2.0 * x[:, 0] ** 2 + 0.5 * (np.log(precision) - precision * off**2).sum(axis=1)


def scales_draws(rng, n):
    """A scale itself, which ends at zero, and what it scales."""
    scale = rng.gamma(2.0, size=(n, 1))
    return np.hstack([scale, scale * rng.normal(size=(n, 4))])


def scales(x):
    scale = np.where(x[:, 0] > 0.0, x[:, 0], np.nan)
    return -scale - 0.5 * (x[:, 1:] ** 2).sum(axis=1) / scale**2 - 3.0 * np.log(scale)


def factor_draws(rng, n):
    """A factor, and what was measured of its product with each of three others."""
    a = rng.normal(size=n)
    precision = 1.0 + a[:, None] ** 2 / ERRORS**2
    return np.column_stack([a, a[:, None] / ERRORS**2 / precision + rng.normal(size=(n, 3)) / np.sqrt(precision)])


def factor(x):
    precision = 1.0 + x[:, :1] ** 2 / ERRORS**2
    off = x[:, 1:] - x[:, :1] / ERRORS**2 / precision
    return -0.5 * x[:, 0] ** 2 + 0.5 * (np.log(precision) - precision * off**2).sum(axis=1)


@pytest.mark.parametrize("power", [0, 2, -2])
def test_the_map_its_inverse_and_determinant_and_scores_of_a_straightened_surrogate(power, rng):
    found, x = some_map(rng, 4, power), rng.normal(size=(3, 4))
    straight, log_det = found.straighten(x)
    places, same = found.bend(straight)
    np.testing.assert_allclose(places, x, atol=1e-10)
    np.testing.assert_allclose(same, log_det, rtol=1e-12)
    jacobians = [central_differences(lambda y: found.straighten(y[None])[0][0], row) for row in x]
    np.testing.assert_allclose(log_det, [np.linalg.slogdet(jacobian)[1] for jacobian in jacobians], atol=1e-6)
    points = rng.normal(size=(60, 4))
    learned = S.Values().fit(points, -0.5 * (points**2).sum(axis=1) + np.sin(points).sum(axis=1), rng)
    surrogate = surrogate_fit.StraightenedSurrogate(learned, found)
    slopes = [central_differences(lambda y: surrogate.log_density(y[None])[0], row) for row in x]
    np.testing.assert_allclose(surrogate.score(x), slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(("log_density", "draw"), [
    (neals, partial(neals_draws, d=5)),
    (hierarchy, hierarchy_draws),
    (bent_log_density, bent_draws),
    (scales, scales_draws),
    (factor, factor_draws),
], ids=["funnel", "hierarchy", "banana", "scale", "factor"])  # fmt: skip
def test_what_is_normal_given_one_coordinate_becomes_normal(log_density, draw, is_mirrored, rng):
    def mirrored(x):  # driver last, and its scale falls
        return x[:, ::-1] * [*np.ones(x.shape[1] - 1), -1.0]

    def drawn(n):
        x = draw(rng, n)
        return mirrored(x) if is_mirrored else x

    def values_at(x):
        return log_density(np.column_stack([-x[:, -1], x[:, -2::-1]]) if is_mirrored else x)

    draws, places = drawn(3000), drawn(1500)
    driver = places.shape[1] - 1 if is_mirrored else 0
    places[::3] += rng.normal(size=places[::3].shape)  # proposals that were rejected
    values = values_at(places)
    places[:5], values[:5] = 20.0 * places[:5], values_at(20.0 * places[:5])  # far out
    values[5::40], values[25::40] = -1e10, -1e5  # solutions that failed, beyond the zero of a scale, too
    values[15::20] -= 3e3
    places[::50], values[::50] = 1e9, 0.0
    found = fitted(draws, places[~np.isnan(values)], values[~np.isnan(values)])
    assert found.driver == driver
    straight = found.straighten(drawn(4000))[0]
    for z in straight[:, found.others].T:
        low = straight[:, driver] < 0.0
        assert_normal(z[low], z[~low])


@pytest.mark.parametrize("driver", [0, 2])
def test_a_ridge_along_a_cube_becomes_normal(driver, rng):
    """Where a square explains as much as a cube, as along a banana, there is no cube."""

    def drawn(n, degree):
        x = rng.normal(size=(n, 3)) * [2.0, 1.0, 1.0]
        x[:, 1] += x[:, 0] ** degree
        return np.roll(x, driver, axis=1)

    for degree in (3, 2):
        draws, places = drawn(3000, degree), drawn(1500, degree)
        places[::3] += rng.normal(size=places[::3].shape)
        places[:5] *= 20.0
        x = np.roll(places, -driver, axis=1)
        found = fitted(draws, places, -0.5 * (x[:, 0] ** 2 / 4.0 + (x[:, 1] - x[:, 0] ** degree) ** 2 + x[:, 2] ** 2))
        assert found.driver == driver
        assert found.slopes[3].any() == (degree == 3)
        assert_normal(*found.straighten(drawn(4000, degree))[0][:, found.others].T)


def test_the_zero_of_a_scale_is_found_and_where_steps_do_not_converge_the_best_of_them(rng):
    """To many digits, though draws come near to it."""
    for _ in range(2):
        scale = rng.gamma(0.7, size=1500)
        x = np.column_stack([scale, scale[:, None] * rng.normal(size=(1500, 6))])
        found = fitted(x, x, -scale - 6.3 * np.log(scale) - 0.5 * (x[:, 1:] ** 2).sum(axis=1) / scale**2)
        assert found.kind == (0, -2)
        assert found.center[0] - found.spread / found.scaling.rate == pytest.approx(0.0, abs=1e-9)
    # Draws of a scale over eleven orders of magnitude.
    rng = np.random.default_rng(1)
    log_scale = 4.0 * rng.normal(size=1500)
    x = np.exp(log_scale)[:, None] * np.column_stack([np.ones(1500), rng.normal(size=(1500, 4))])
    squares = ((x[:, 1:] / x[:, :1]) ** 2).sum(axis=1)
    assert fitted(x, x, -0.5 * (log_scale / 4.0) ** 2 - 5.0 * log_scale - 0.5 * squares).kind == (0, -2)


def test_shares_are_those_of_what_the_driver_scales(rng):
    """Given the log spread the precision of an effect is 1 / spread^2 + 1 / error^2."""
    draws = hierarchy_draws(rng, 3000)
    found = fitted(draws, draws[:1500], hierarchy(draws[:1500]))
    middle = np.exp(-2.0 * np.median(draws[:, 0]))
    np.testing.assert_allclose(np.sort(found.share), np.sort(middle / (middle + ERRORS**-2.0)), atol=1e-3)
    assert found.scaling.rate == pytest.approx(2.0 * draws[:, 0].std(), rel=1e-3)


def test_a_fit_goes_on_from_the_last_one(rng):
    """With its driver, and its rate in units of x, though draws have another spread now."""
    x = neals_draws(rng, 3000, 5)
    few = x[np.abs(x[:, 0]) < 1.0]
    first = fitted(few, few, neals(few))
    assert fitted(x, x[:1500], neals(x[:1500]), first).scaling.rate / x[:, 0].std() == pytest.approx(1.0, rel=1e-6)
    assert fitted(x, x[:1500], neals(x[:1500]), first._replace(driver=2)) is None


@pytest.mark.parametrize("num_places", [2001, 3999])
def test_thirty_dimensions_are_straightened(num_places, rng):
    draws = neals_draws(rng, num_places, 30)
    first = some_map(rng, 30)._replace(driver=0, scaling=Scaling(1.8, 0), spread=draws[:, 0].std())
    assert fitted(draws, draws, neals(draws), first).share.min() > 0.99


def test_tails_that_are_heavy_take_no_other_kind(rng):
    """A square of 1 + r u would explain the values as well, and turn back among the draws."""
    x = rng.standard_t(5, size=(2500, 5))
    x[:, 1:] *= np.exp(0.5 * x[:, :1])
    values = stats.t(5).logpdf(x[:, 0]) - 2.0 * x[:, 0]
    values += stats.t(5).logpdf(x[:, 1:] * np.exp(-0.5 * x[:, :1])).sum(axis=1)
    assert fitted(x, x[:1500], values[:1500]).kind == (0, 0)


def test_centers_stay_among_draws_whose_tails_are_heavy(rng):
    """Where all of a precision is scaled, a part that is not has no center."""
    for _ in range(5):
        x = neals_draws(rng, 3000, 5)
        x[:, 1:] /= np.sqrt(rng.chisquare(5, size=(3000, 1)) / 5.0)
        squares = (x[:, 1:] ** 2).sum(axis=1) * np.exp(-x[:, 0])
        values = -0.5 * (x[:, 0] ** 2 / 4.0 + 9.0 * np.log1p(squares / 5.0) + 4.0 * x[:, 0])
        found = fitted(x, x[:1500], values[:1500])
        mean, precision = found._given((x[:, 0] - found.center[0]) / found.spread)
        assert np.abs(mean * np.sqrt(precision)).max() < 15.0


def test_normal_draws_stay_as_they_are_and_draws_and_values_agree(rng):
    """Values of a funnel do not bend the coordinates of draws that are of a normal distribution."""
    for _ in range(10):
        x = rng.normal(size=(1500, 3))
        assert fitted(x, x, stats.norm.logpdf(x).sum(axis=1)) is None
    places = neals_draws(rng, 1500, 5)
    assert fitted(rng.normal(size=(1500, 5)) * [2.0, 1.0, 1.0, 1.0, 1.0], places, neals(places)) is None
    # Nor is there a map of a single coordinate, of too few draws, or of a chain that stands in one coordinate.
    for x in (neals_draws(rng, 1500, 1), neals_draws(rng, 60, 5), neals_draws(rng, 1500, 3) * [1.0, 0.0, 1.0]):
        assert fitted(x, x, neals(x)) is None


def moves_of(rng, state, sample, log_density, num_steps):
    """Exact draws after transitions along the surrogate alone.

    Also where each began (a coordinate), whether it was accepted, and its log weight.
    """
    target = SimpleNamespace(sample=sample, log_density=lambda x: log_density(x[None])[0])
    state, step = state._replace(walk_share=0.0, is_weighed=True), partial(kh.step, config=kh.Config())
    points, moves = moved(rng, target, partial(kh.relocate, state), step, 2500, num_steps)
    return points, np.array([[x[0], info.accepted, info.log_weight] for x, info in moves], dtype=float).T


def test_moves_along_a_wrong_surrogate_in_other_coordinates_are_invariant(rng):
    """It was learned from a funnel that opens too slowly, elsewhere."""
    wrong = neals_draws(rng, 300, 2) * [1.5, 1.0] + [1.0, 0.5]
    state = taught(rng, wrong, neals((wrong - [1.0, 0.5]) / [1.5, 1.0]), kh.Config())
    assert state.fit.coordinates.share[0] > 0.9
    points, (_, accepted, _) = moves_of(rng, state, partial(neals_draws, d=2), neals, 5)
    assert 0.1 < accepted.mean() < 0.9
    assert_normal(points[:, 0] / 2.0, points[:, 1] * np.exp(-0.5 * points[:, 0]))


def both_sides(x):
    """A log density of a normal scale, whose sign is unknown to what it scales."""
    return -0.5 * ((x[:, 0] - 1.0) ** 2 + (x[:, 1] / x[:, 0]) ** 2) - np.log(np.abs(x[:, 0]))


def test_beyond_the_zero_of_a_scale_moves_are_rejected(rng):
    """It was learned from one side of the zero, and has no density on the other."""

    def drawn(rng, n):
        scale = 1.0 + rng.normal(size=n)
        return np.column_stack([scale, scale * rng.normal(size=n)])

    x = drawn(rng, 600)
    x = x[x[:, 0] > 0.0]
    state = taught(rng, x, both_sides(x), kh.Config())
    assert state.fit.coordinates.kind == (0, -2)
    points, (before, accepted, weights) = moves_of(rng, state, drawn, both_sides, 3)
    is_beyond = before < 0.0
    assert 0.1 < is_beyond.mean() < 0.2
    assert not accepted[is_beyond].any()
    assert accepted[~is_beyond].mean() > 0.5
    assert (np.isposinf(weights) == is_beyond).all()
    assert_normal(points[:, 0] - 1.0, points[:, 1] / points[:, 0])


def test_a_funnel_is_drawn_nearly_independently(rng):
    def log_density(x):
        return neals(x[None])[0]

    draws, state = run(kh, rng, log_density, np.zeros(6), tune=1500, draws=1500)
    assert smallest_bulk_ess(draws[None]) > 300
    thinned = draws[::10]
    assert_normal(thinned[:, 0] / 2.0, thinned[:, 1] * np.exp(-0.5 * thinned[:, 0]))
    x = neals_draws(rng, 1000, 6)
    assert np.std(state.fit.surrogate.log_density(x) - neals(x)) < 0.1
    weights = []
    for x in neals_draws(rng, 50, 6):
        weights.append(kh.step(rng, kh.relocate(state, x, log_density(x)), log_density, kh.Config())[1].log_weight)
    assert np.std(weights) < 0.1


def test_a_scale_that_ends_at_zero_is_drawn(rng):
    """Beyond it a failed evaluation stands for no density."""

    def log_density(x):
        return scales(x[None])[0] if x[0] > 0.0 else -1e12

    draws, state = run(kh, rng, log_density, np.ones(5), tune=1500, draws=1500)
    assert state.fit.coordinates.scaling.power == -2
    assert smallest_bulk_ess(draws[None]) > 300
    thinned = draws[::10]
    assert stats.kstest(thinned[:, 0], stats.gamma(2.0).cdf).pvalue > 1e-4
    assert_normal(thinned[:, 1] / thinned[:, 0])


@pytest.mark.parametrize(("power", "degree"), [(0, 2), (2, 2), (-2, 2), (0, 3)])
def test_a_criterion_counts_each_function_once(rng, power, degree):
    """Of products, the driver squared times another coordinate is among the features of every driver already."""
    places = rng.normal(size=(400, 3))
    regression = _Regression(places, 0, np.ones((400, 1)), rng.normal(size=400), degree)
    scaling = Scaling(-0.2, power)
    criterion, _ = regression.fit(scaling)
    new = regression.features(scaling)
    rank = np.linalg.matrix_rank(np.concatenate([regression.steady, new], axis=1)) - regression.steady.shape[1]
    left = new - regression.steady @ np.linalg.lstsq(regression.steady, new)[0]
    error = regression._left - left @ np.linalg.lstsq(left, regression._left, rcond=1e-9)[0]
    assert criterion == pytest.approx(400 * np.log((error**2).mean()) + rank * np.log(400))
