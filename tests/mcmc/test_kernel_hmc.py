import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.measures import smallest_bulk_ess
from benchmarks.targets import banana
from benchmarks.trajectories import leapfrog
from pymc_kernel import scores as S
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import trajectory
from tests.mcmc.chains import misled, moved, run
from tests.reference.bananas import BANANA, worst_p_value


def only(kind):
    """Return shares of moves that are all of one kind."""
    return kh.Shares(*(float(move == kind) for move in kh.MOVES))


@pytest.mark.parametrize("kind", kh.MOVES)
def test_every_move_is_invariant_with_a_misled_surrogate(kind, rng):
    state, config = misled(rng, S.Values())
    state, accepted = state._replace(shares=only(kind)), []

    def step(*given):
        after, info = kh.step(*given, config)
        accepted.append(info.accepted)
        return after, info

    def begin(x):
        return kh.relocate(state, x, BANANA.log_density(x))

    points = moved(rng, BANANA, begin, step, 2500, 5)
    assert np.mean(accepted) > 0.02
    assert worst_p_value(points) > 1e-4


def test_chains_on_the_surrogate_accept_by_its_energy(rng):
    """Coarse steps, each transition by hand: the surrogate's value minus the kinetic energy decides."""
    expansion = misled(rng, S.Values())[0].fit.expansion
    accepted = []
    for _ in range(100):
        start, momenta, uniforms = rng.standard_normal(2), rng.standard_normal((3, 2)), rng.random(3)
        lengths, sizes = rng.integers(1, 5, size=3), rng.uniform(1.0, 2.5, size=3)
        there, value = start, leapfrog(start, momenta[0], 0.0, 1, expansion)[2]
        for t in range(3):
            end, momentum, new = leapfrog(there, momenta[t], sizes[t], lengths[t], expansion)
            gain = new - value - 0.5 * momentum @ momentum + 0.5 * momenta[t] @ momenta[t]
            accepted.append(uniforms[t] < math.exp(min(gain, 0.0)))
            if accepted[-1]:
                there, value = end, new
        one = (a[None] for a in (start, momenta, uniforms, lengths, sizes))
        found, last, *_ = trajectory.surrogate_chains(*one, expansion)
        np.testing.assert_allclose(found[0], there, rtol=1e-10)
        assert abs(last[0] - value) < 1e-8
    assert 0.1 < np.mean(accepted) < 0.9


# -- tuning ---------------------------------------------------------------------------------------------


def test_fits_become_rarer_and_end_before_tuning_does():
    due = [t + 1 for t in range(3000) if kh.refit_is_due(8, t, 2000)]
    assert due[0] == 180
    assert due[-1] == 1800
    gaps = np.diff(due)[:-1]
    assert 15 < len(due) < 22
    assert (np.diff(gaps) >= -1).all()
    assert not any(kh.refit_is_due(8, t, 0) for t in range(100))
    assert kh.stretches(8, 2000) == np.diff([0, *due, 2000]).tolist()


def test_nothing_changes_after_tuning(rng):
    config = kh.Config()
    _, state = run(kh, rng, lambda x: -0.5 * x @ x, np.ones(3), tune=300, draws=1)
    assert state.shares == (0.05, 0.9, 0.05)
    later = state
    for _ in range(50):
        later, info = kh.step(rng, later, lambda x: -0.5 * x @ x, config)
        later = kh.adapt(rng, later, info, config, 300)
    assert later.fit is state.fit
    assert later.visited is state.visited
    assert later.walk is state.walk
    assert later.shares == state.shares


@pytest.mark.parametrize(
    ("far", "shares"),
    [
        ([[1.0, 2.0], [2.0, 3.0], [0.5, 0.5]], (0.05, 0.9, 0.05)),
        ([[1.0, 2.0], [0.1, 1.0], [0.6, 0.5]], (0.95, 0.0, 0.05)),
        ([[0.1, 0.2], [0.0, 2.0], [0.5, 0.5]], (0.05, 0.0, 0.95)),
        ([[0.0, 0.0], [0.0, 2.0], [2.0, 0.5]], (0.05, 0.95 * 3.0 / 7.0, 0.95 * 4.0 / 7.0)),
    ],
)
def test_shares_of_moves_are_those_with_which_the_slowest_coordinate_goes_farthest(far, shares, rng):
    """In whitened coordinates, however often each kind moved; a surrogate whose moves add nothing is not used.

    Draws have weights where most moves go along it.
    """
    state, config = misled(rng, S.Values())
    num_jumps = np.array([40.0, 50.0, 5.0])
    jumps = np.array(
        [n * state.walk.factor @ np.diag(row) @ state.walk.factor.T for row, n in zip(far, num_jumps, strict=True)]
    )
    after = kh.finish(state._replace(jumps=jumps, num_jumps=num_jumps), config)
    assert after.shares == pytest.approx(shares)
    assert kh.is_dropped(after) == (shares[0] > 0.5)
    assert kh.is_apart(after) == (shares[2] > 0.5)
    _, info = kh.step(rng, after, BANANA.log_density, config)
    assert math.isfinite(info.log_weight) == (shares[1] == 0.9)


@pytest.mark.parametrize("jumps", [np.zeros((3, 2)), [[0.0, 1.0]] * 3, [[1.0, np.inf]] * 3, [[1.0, np.nan]] * 3])
def test_shares_stay_where_jumps_say_nothing(jumps):
    assert kh.farthest_shares(np.array(jumps), 0.2) == pytest.approx((0.1, 0.8, 0.1))


def test_shares_do_not_depend_on_units_and_take_any_exploring_share():
    far = np.array([[0.1, 0.2], [2.0, 1e30], [0.3, 0.2]])
    for unit in (1e-20, 1.0, 1e20):
        assert kh.farthest_shares(unit * far, 0.1) == pytest.approx((0.05, 0.9, 0.05))
    assert kh.farthest_shares(far, 1.0) == pytest.approx((0.5, 0.0, 0.5))


def test_jumps_before_the_first_surrogate_do_not_count(rng):
    """Until then the walk of each chain has a shape of its own."""
    state, config = misled(rng, S.Values())
    state = state._replace(jumps=np.ones((3, 2, 2)), num_jumps=np.ones(3))
    anew, later = (kh.with_fit(one, state.fit, config) for one in (state._replace(fit=None), state))
    assert not anew.jumps.any()
    assert not anew.num_jumps.any()
    assert later.jumps.all()
    assert later.num_jumps.all()


CENTERS = np.array([[-6.0, 0.0], [6.0, 0.0]])


def two_modes(x):
    """Two normals, twelve standard deviations apart, with a third and two thirds of the mass."""
    return np.logaddexp(*(np.log([1.0, 2.0]) - 0.5 * ((x - CENTERS) ** 2).sum(axis=1)))


def check_two_modes(rng, state, config):
    """2,000 draws from a state after tuning have the right masses and spreads."""
    draws = []
    for _ in range(2000):
        state, _ = kh.step(rng, state, two_modes, config)
        draws.append(state.position)
    draws = np.array(draws)
    assert abs((draws[:, 0] > 0.0).mean() - 2.0 / 3.0) < 0.12  # four standard errors
    np.testing.assert_allclose(np.abs(draws[:, 0]).std(), 1.0, atol=0.15)
    np.testing.assert_allclose(draws[:, 1].std(), 1.0, atol=0.15)


@pytest.mark.long
def test_chains_go_from_mode_to_mode(rng):
    """One began in each of two modes."""
    config = kh.Config()
    states = [kh.init(center, two_modes(center), config) for center in CENTERS]
    *before, last = kh.stretches(2, 600)
    for num_draws in before:
        states = [kh.run(rng, state, two_modes, config, num_draws, lambda _: None) for state in states]
        states = kh.fit_together(rng, states, config)
    states = [kh.run(rng, state, two_modes, config, last, lambda _: None) for state in states]
    learned = kh.frozen(states, config)
    assert learned.shares.differences > 0.5
    for center in CENTERS:
        check_two_modes(rng, kh.relocate(learned, center, two_modes(center)), config)


def test_a_chain_goes_to_hills_that_a_search_has_found(rng):
    """And not to one where there is no mass."""
    config, hills = kh.Config(), np.array([[5.0, 0.5], [0.0, 30.0]])
    state = kh.init(CENTERS[0], two_modes(CENTERS[0]), config, hills)
    for _ in range(800):
        state, info = kh.step(rng, state, two_modes, config)
        state = kh.adapt(rng, state, info, config, 800)
    check_two_modes(rng, state, config)


def test_surrogate_moves_are_nearly_independent_draws_on_a_banana(rng):
    target = banana(0.1, 25.0, num_dims=4)
    calls = []

    def counted(x):
        calls.append(x)
        return target.log_density(x)

    draws, state = run(kh, rng, counted, np.full(4, 2.0), tune=1000, draws=2000)
    assert len(calls) <= 3001
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
