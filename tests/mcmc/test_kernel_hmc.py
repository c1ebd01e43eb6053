import math
from functools import partial, reduce
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from benchmarks.measures import smallest_bulk_ess
from benchmarks.targets import banana, correlated_gaussian, linear_regression
from benchmarks.trajectories import leapfrog
from pymc_kernel import scores as S
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import burn_in, surrogate_fit, trajectory
from pymc_kernel.mcmc import kernel_hmc as kh
from tests.mcmc.chains import misled, moved, run, taught
from tests.reference.bananas import BANANA, worst_p_value


@pytest.mark.parametrize("kind", kh.MOVES)
def test_every_move_is_invariant_with_a_misled_surrogate(kind, rng):
    state = misled(rng, kh.Config())._replace(walk_share=float(kind == kh.WALK))
    points, moves = moved(rng, BANANA, partial(kh.relocate, state), partial(kh.step, config=kh.Config()), 2500, 5)
    assert np.mean([info.accepted for _, info in moves]) > 0.02
    assert worst_p_value(points) > 1e-4


def test_chains_on_the_surrogate_accept_by_its_energy(rng):
    """Coarse steps, each transition by hand: the surrogate's value minus the kinetic energy decides."""
    expansion = misled(rng, kh.Config()).fit.expansion
    accepted = []
    for _ in range(100):
        start, momenta, uniforms = rng.standard_normal(2), rng.standard_normal((3, 2)), rng.random(3)
        step_sizes, num_steps = rng.uniform(0.5, 2.5, size=3), rng.integers(1, 5)
        there, value = start, leapfrog(start, momenta[0], 0.0, 1, expansion)[2]
        for t in range(3):
            end, momentum, new = leapfrog(there, momenta[t], step_sizes[t], num_steps, expansion)
            gain = new - value - 0.5 * momentum @ momentum + 0.5 * momenta[t] @ momenta[t]
            accepted.append(uniforms[t] < math.exp(min(gain, 0.0)))
            if accepted[-1]:
                there, value = end, new
        one = (a[None] for a in (start, momenta, uniforms, step_sizes))
        found, last, *_ = trajectory.surrogate_chains(*one, num_steps, expansion)
        np.testing.assert_allclose(found[0], there, rtol=1e-10)
        assert abs(last[0] - value) < 1e-8
    assert 0.1 < np.mean(accepted) < 0.9


def test_fits_become_rarer_and_nothing_changes_after_tuning(rng):
    due = [t + 1 for t in range(3000) if kh.refit_is_due(8, t, 2000)]
    assert due[0] == 180
    assert due[-1] == 1800
    gaps = np.diff(due)[:-1]
    assert 15 < len(due) < 22
    assert (np.diff(gaps) >= -1).all()
    assert not any(kh.refit_is_due(8, t, 0) for t in range(100))
    assert kh.stretches(8, 2000) == np.diff([0, *due, 2000]).tolist()
    config = kh.Config()
    _, state = run(kh, rng, lambda x: -0.5 * x @ x, np.ones(3), tune=300, draws=1)
    assert state.walk_share == config.exploring_share
    later = state
    for _ in range(50):
        later, info = kh.step(rng, later, lambda x: -0.5 * x @ x, config)
        later = kh.adapt(rng, later, info, config, 300)
    assert later.fit is state.fit
    assert later.visited is state.visited
    assert later.walk is state.walk
    assert later.walk_share == state.walk_share


def test_surrogate_moves_are_nearly_independent_draws_on_a_banana(rng):
    target = banana(0.1, 25.0, num_dims=4)
    counted = Mock(side_effect=target.log_density)
    draws, state = run(kh, rng, counted, np.full(4, 2.0), tune=1000, draws=2000)
    assert counted.call_count <= 3001
    assert smallest_bulk_ess(draws[None]) > 400
    thinned = target.level(draws[::10])  # to near independence
    assert stats.kstest(thinned, stats.chi2(4).cdf).pvalue > 1e-4
    assert state.fit.learned.quality < 1.0


@pytest.mark.parametrize("name", ["lite", *(pytest.param(n, marks=pytest.mark.slow) for n in ("finite", "nystrom"))])
def test_score_matching_surrogates_move(name, rng):
    estimator = {"lite": S.Lite(num_basis=300), "finite": S.Finite(), "nystrom": S.Nystrom(num_basis=20)}[name]
    draws, state = run(kh, rng, lambda x: -0.5 * x @ x, np.ones(3), kh.Config(estimator), 600, 1000)
    assert state.fit is not None
    assert smallest_bulk_ess(draws[None]) > 75
    np.testing.assert_allclose(draws.std(axis=0), 1.0, atol=0.25)


@pytest.mark.parametrize("work", [0.0, 1e6])
def test_many_chains_at_once_are_those_one_by_one(work, rng):
    """Bit for bit, in one thread or several."""
    x = rng.normal(size=(60, 3))
    expansion = S.Values().fit(x, np.sin(x).sum(axis=1) - 0.5 * (x**2).sum(axis=1), rng, noisy=False).expansion
    momenta, uniforms = rng.standard_normal((20, 4, 3)), rng.random((20, 4))
    step_sizes, num_steps = rng.uniform(0.4, 0.8, (20, 4)), 6
    together = trajectory.surrogate_chains(x[:20], momenta, uniforms, step_sizes, num_steps, expansion, work)
    for i in range(20):
        one = (a[i : i + 1] for a in (x, momenta, uniforms, step_sizes))
        for many, alone in zip(together, trajectory.surrogate_chains(*one, num_steps, expansion), strict=True):
            np.testing.assert_array_equal(many[i], alone[0])
    assert (np.abs(together[0] - x[:20]).sum(axis=1) > 0.0).sum() > 5


def test_the_largest_correlation(rng):
    before = rng.normal(size=(500, 3)) + 1e3
    after = np.column_stack([-0.8 * before[:, 0] + rng.normal(size=500), rng.normal(size=500), np.ones(500)])
    expected = max(abs(np.corrcoef(before[:, j], after[:, j])[0, 1]) for j in range(2))
    assert trajectory.largest_correlation(before, after) == pytest.approx(expected, abs=1e-9)
    assert trajectory.largest_correlation(before, np.ones((500, 3))) == 0.0


def surrogate_of_a_normal(num_dims):
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30 * num_dims, num_dims))
    return S.Values().fit(points, -0.5 * (points**2).sum(axis=1), rng, noisy=False).expansion


def test_chains_move_where_the_chosen_steps_are_unstable(rng):
    """On a standard normal surrogate, steps of more than two diverge; half of those from one to three do not."""
    starts = rng.standard_normal((1000, 2))
    ends, *_ = trajectory.random_chains(rng, starts, 6, 3.0, 8, surrogate_of_a_normal(2))
    assert (ends != starts).all(axis=1).mean() > 0.9
    assert min(stats.kstest(column, stats.norm().cdf).pvalue for column in ends.T) > 1e-4


def test_trajectories_on_a_normal_surrogate_forget_where_they_began(rng):
    starts = rng.standard_normal((20_000, 1))
    steps = math.ceil(trajectory.LONGEST / 0.05)
    ends, *_ = trajectory.random_chains(rng, starts, 1, 0.05, steps, surrogate_of_a_normal(1))
    assert trajectory.largest_correlation(starts, ends) < 0.04
    assert 0.14 < trajectory.largest_correlation(starts**2, ends**2) < 0.22  # 1/2 - 1/pi


@pytest.mark.parametrize(("shape", "step_size", "num_steps", "least", "most"), [
    ((400, 2), 0.25, 6, 3, 8), ((400, 2), 0.25, 1, 32, 32), ((100, 2), 0.5, 3, 2, 6), ((100, 40), 0.5, 3, 2, 6),
])  # fmt: skip
def test_a_chain_is_no_longer_than_to_forget_nor_for_the_noise_of_many_correlations(
    shape, step_size, num_steps, least, most, rng
):
    """On a normal surrogate, where trajectories turn: six steps of .08 to .25 keep .5 on the average.

    The largest of eighty correlations of a hundred independent pairs is about .27.
    """
    normal = surrogate_of_a_normal(shape[1])
    length = trajectory.choose_chain_length(rng, rng.standard_normal(shape), step_size, num_steps, normal)
    assert least <= length <= most


def test_the_walk_takes_over_where_trajectories_are_rejected(rng):
    state, config = misled(rng, kh.Config()), kh.Config()
    rejected = kh.Info(False, 0.0, 1.0, state.position, -math.inf, kh.TRAJECTORIES, math.inf, 5)
    shares, one = [], state._replace(worth=np.array([0.9, 2.0]), num_tried=1000)
    for _ in range(150):
        one = kh.learn_from(one, rejected, config)
        shares.append(one.walk_share)
    assert shares[0] < 0.15
    assert np.all(np.diff(shares) >= 0.0)
    assert shares[-1] == pytest.approx(0.9)
    assert kh.is_dropped(kh.finish(one, config))
    for _ in range(150):
        one = kh.learn_from(one, rejected._replace(accepted=True, squared_jump=3.0), config)
    assert one.walk_share == pytest.approx(config.exploring_share)
    assert not kh.is_dropped(kh.finish(one, config))
    for _ in range(300):
        one = kh.learn_from(one, rejected._replace(accepted=True, squared_jump=1e-4), config)
    assert one.walk_share == pytest.approx(0.9)  # accepted, but of tiny steps


@pytest.mark.slow
def test_two_modes(rng):
    """Modes four standard deviations apart, weights 0.3 and 0.7."""

    def log_density(x):
        return np.logaddexp(math.log(0.3) - 0.5 * ((x + 2) ** 2).sum(), math.log(0.7) - 0.5 * ((x - 2) ** 2).sum())

    draws, _ = run(kh, rng, log_density, [2.0, 2.0], tune=1500, draws=6000)
    assert (draws[:, 0] > 0).mean() == pytest.approx(0.7, abs=0.1)


def test_a_box(rng):
    """Uniform where the density is not zero: minus infinity at a third of the proposals."""
    draws, _ = run(kh, rng, lambda x: 0.0 if (np.abs(x) < 1).all() else -math.inf, np.zeros(3), tune=800, draws=5000)
    assert (np.abs(draws) < 1).all()
    size = smallest_bulk_ess(draws[None])
    assert size > 100
    np.testing.assert_allclose((draws < 0.5).mean(axis=0), 0.75, atol=5 * 0.45 / math.sqrt(size))


@pytest.mark.long
def test_the_way_in_does_not_spoil_what_is_learned(rng):
    """A regression with flat priors from zero, fifty standard deviations off: means, spreads and quantiles."""
    target = linear_regression(8)
    draws, _ = run(kh, rng, target.log_density, np.zeros(8), tune=900, draws=2000)
    exact = target.sample(rng, 50_000)
    spread = exact.std(axis=0)
    assert smallest_bulk_ess(draws[None]) > 400
    np.testing.assert_allclose((draws.mean(axis=0) - exact.mean(axis=0)) / spread, 0.0, atol=0.2)
    np.testing.assert_allclose(draws.std(axis=0) / spread, 1.0, atol=0.15)
    np.testing.assert_allclose((draws < np.quantile(exact, 0.05, axis=0)).mean(axis=0), 0.05, atol=0.04)
    np.testing.assert_allclose((draws > np.quantile(exact, 0.95, axis=0)).mean(axis=0), 0.05, atol=0.04)


def test_the_walk_keeps_its_step_when_learning_begins():
    factor, config = np.array([[3.0, 0.0], [1.0, 0.5]]), kh.Config()
    state = kh.init(np.zeros(2), 0.0, config)
    walk = state.walk._replace(factor=factor, log_scale=-2.0)
    info = kh.Info(False, 0.0, 1.0, state.position, 0.0, kh.TRAJECTORIES, 0.0, 0)
    after = kh.learn_from(state._replace(walk=walk, iteration=1000), info, config)
    assert after.arrival is None
    assert math.exp(after.walk.log_scale) == pytest.approx(am.optimal_scale(2))
    np.testing.assert_allclose(am.optimal_scale(2) * after.walk.factor, math.exp(-2.0) * factor)


def test_a_fit_that_fails_keeps_the_old_one_and_a_chain_begins_without_the_rejections_of_another(rng):
    state, config = misled(rng, kh.Config()), kh.Config()
    one = {name: getattr(state, name)._replace(count=1) for name in ("evaluated", "visited")}
    assert surrogate_fit.refit(rng, [state._replace(**one)], config) is None
    tired = kh.init(np.zeros(2), 0.0, config)._replace(rejections=351)
    assert kh.relocate(kh.frozen([tired, tired], config), np.ones(2), -1.0).rejections == 0


def with_shape(mean, factor):
    """A state of a chain whose walk has learned a mean and a factor of the covariance."""
    state = kh.init(np.zeros(2), 0.0, kh.Config())
    return state._replace(walk=state.walk._replace(mean=np.asarray(mean), factor=np.asarray(factor)))


def test_joint_shape_is_that_of_all_points_also_of_chains_on_a_line(rng):
    groups = [rng.normal(size=(50, 2)) + m for m in ([0.0, 0.0], [5.0, 1.0])]
    states = [with_shape(x.mean(axis=0), np.linalg.cholesky(np.cov(x.T, bias=True))) for x in groups]
    mean, factor = surrogate_fit.joint_shape(states)
    both = np.concatenate(groups)
    np.testing.assert_allclose(mean, both.mean(axis=0))
    np.testing.assert_allclose(factor @ factor.T, np.cov(both.T, bias=True))
    # The covariance is singular in floating point: whether it factors may hang on no processor.
    line = with_shape(np.zeros(2), [[1e-6, 0.0], [1.0, 1e-9]])
    _, factor = surrogate_fit.joint_shape([line, line])
    np.testing.assert_allclose(factor @ factor.T, [[1e-12, 1e-6], [1e-6, 1.0]], rtol=1e-8)
    assert (np.diag(factor) > 0.0).all()


NUM_DIMS = 24  # a quadratic has 325 coefficients
PLACE = np.linspace(-2.0, 3.0, NUM_DIMS)
CONFIG = kh.Config(S.Values(max_iterations=5))


def evaluations(rng, num_points):
    """Places in a part of the bulk, and the log density of a Gaussian of condition 1000 around ``PLACE``."""
    target = correlated_gaussian(NUM_DIMS)
    points = PLACE + 0.3 * target.sample(rng, num_points) + 0.05 * rng.standard_normal((num_points, NUM_DIMS))
    return target, points, np.array([target.log_density(x - PLACE) for x in points])


@pytest.mark.parametrize(
    ("num_points", "noisy", "is_exact"), [(400, False, True), (360, False, False), (400, True, False)]
)
def test_a_gaussian_is_exact_once_there_are_enough_values(num_points, noisy, is_exact, rng):
    target, points, values = evaluations(rng, num_points)
    fitted = S.Values(max_iterations=5).fit(points, values, rng, noisy=noisy)
    assert fitted.has_trend == is_exact
    draws = target.sample(rng, 200)
    errors = fitted.log_density(PLACE + draws) - [target.log_density(x) for x in draws]
    assert (errors.std() < 0.05) == is_exact


def test_trajectories_run_in_the_shape_of_the_quadratic_if_it_has_a_maximum(rng):
    target, points, values = evaluations(rng, 400)
    state = taught(rng, points, values, CONFIG)
    exact = np.cov(target.sample(rng, 100_000).T)
    np.testing.assert_allclose(state.fit.factor @ state.fit.factor.T, exact, atol=0.02 * exact.max())
    np.testing.assert_allclose(state.fit.factor, np.tril(state.fit.factor), atol=1e-12)
    np.testing.assert_allclose(state.fit.mean, PLACE, atol=0.02)
    np.testing.assert_array_equal(state.walk.factor, np.eye(NUM_DIMS))
    _, points, values = evaluations(rng, 400)
    fit = taught(rng, points, values + 40.0 * (points[:, 0] - PLACE[0]) ** 2, CONFIG).fit
    assert fit.learned.surrogate.has_trend
    np.testing.assert_allclose(fit.factor @ fit.factor.T, np.cov(points.T), atol=0.1 * exact.max())


def test_a_chain_that_rises_has_not_arrived_and_one_that_starts_in_the_bulk_soon_begins_to_learn(rng):
    start = burn_in.Arrival(2)
    for levels in (np.linspace(-1000.0, 0.0, 400), [0.0] * 10):
        assert not burn_in.has_arrived(reduce(burn_in.remember, levels, start))
    # Risen long ago: bounded, and flat.
    arrival = reduce(burn_in.remember, np.minimum(np.linspace(-1000.0, 500.0, 400), 0.0), start)
    assert burn_in.has_arrived(arrival)
    assert len(arrival.levels) < 100
    assert learning(rng, lambda x: -0.5 * x @ x, rng.standard_normal(5), 150).num_learned > 50


def test_the_scale_falls_at_a_speed_that_does_not_vanish_and_stays_where_noise_holds_a_chain_fast():
    assert burn_in.learn_scale(burn_in.Arrival(2, (), 200), 0.0, -0.234, noisy=False)[1] == pytest.approx(-0.234 / 2.0)
    # The first steps are as quick as those of any walk.
    assert burn_in.learn_scale(burn_in.Arrival(50), 0.0, -0.234, noisy=False)[1] == pytest.approx(-0.234)
    arrival, log_scale = burn_in.Arrival(2), 0.0
    for _ in range(60):
        arrival, log_scale = burn_in.learn_scale(arrival, log_scale, -0.234, noisy=True)
    assert math.exp(log_scale) > 0.05


def learning(rng, target, start, num_steps):
    config = kh.Config()
    state = kh.run(rng, kh.init(start, target(start), config), target, config, num_steps, lambda accepted: None)
    assert state.arrival is None
    return state


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", [linear_regression(8), banana(0.1, 100.0, 20)], ids=["regression", "banana"])
def test_a_chain_from_a_poor_start_arrives_within_some_hundred_draws(target, seed):
    rng = np.random.default_rng(seed)
    some = target.sample(rng, 500)
    start = np.zeros(8) if target.num_dims == 8 else rng.standard_normal(20) * some.std(axis=0)
    state = learning(rng, target.log_density, start, 800)
    typical = np.quantile([target.log_density(x) for x in some], 0.001)
    assert state.log_density > typical
    levels = np.array([target.log_density(x) for x in state.visited.buffer[: state.visited.count]])
    # What is left of the way in is a small part of what the walk learns from.
    assert (levels > typical).mean() > 0.8
