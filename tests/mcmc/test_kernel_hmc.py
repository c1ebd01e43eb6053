import math
from functools import partial
from unittest.mock import Mock

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


@pytest.mark.parametrize("kind", kh.MOVES)
def test_every_move_is_invariant_with_a_misled_surrogate(kind, rng):
    state, config = misled(rng, S.Values())
    state, accepted = state._replace(walk_share=float(kind == kh.WALK)), []

    def step(*given):
        after, info = kh.step(*given, config)
        accepted.append(info.accepted)
        return after, info

    points = moved(rng, BANANA, partial(kh.relocate, state), step, 2500, 5)
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


# -- trajectories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [0.0, 1e6])
def test_many_chains_at_once_are_those_one_by_one(work, rng):
    """Bit for bit, in one thread or several."""
    x = rng.normal(size=(60, 3))
    expansion = S.Values().fit(x, np.sin(x).sum(axis=1) - 0.5 * (x**2).sum(axis=1), rng, noisy=False).expansion
    momenta, uniforms = rng.standard_normal((20, 4, 3)), rng.random((20, 4))
    lengths, sizes = rng.integers(1, 9, (20, 4)), rng.uniform(0.1, 1.5, (20, 4))
    together = trajectory.surrogate_chains(x[:20], momenta, uniforms, lengths, sizes, expansion, work)
    for i in range(20):
        one = (a[i : i + 1] for a in (x, momenta, uniforms, lengths, sizes))
        for many, alone in zip(together, trajectory.surrogate_chains(*one, expansion), strict=True):
            np.testing.assert_array_equal(many[i], alone[0])
    assert (np.abs(together[0] - x[:20]).sum(axis=1) > 0.0).sum() > 5


def test_the_largest_correlation(rng):
    before = rng.normal(size=(500, 3)) + 1e3
    after = np.column_stack([-0.8 * before[:, 0] + rng.normal(size=500), rng.normal(size=500), np.ones(500)])
    expected = max(abs(np.corrcoef(before[:, j], after[:, j])[0, 1]) for j in range(2))
    assert trajectory.largest_correlation(before, after) == pytest.approx(expected, abs=1e-9)
    assert trajectory.largest_correlation(before, np.ones((500, 3))) == 0.0


@pytest.mark.parametrize(("num_steps", "least", "most"), [(6, 3, 8), (1, 32, 32)])
def test_a_chain_is_as_long_as_it_takes_to_forget(num_steps, least, most, rng):
    """On a normal surrogate, where trajectories turn: three to six steps of .25, or less, keep .7 on the average."""
    starts, other = rng.standard_normal((400, 2)), np.random.default_rng(0)
    points = other.standard_normal((60, 2))
    normal = S.Values().fit(points, -0.5 * (points**2).sum(axis=1), other, noisy=False).expansion
    length = trajectory.choose_chain_length(rng, starts, 0.25, num_steps, normal)
    assert least <= length <= most
