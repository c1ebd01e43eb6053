from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from benchmarks.targets import correlated_gaussian
from pymc_kernel import kernels as K
from pymc_kernel.errors import NotDifferentiableError
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc import local_proposal
from pymc_kernel.smc import Evaluated, Kameleon
from tests.mcmc.chains import moved, proposal_covariance, run
from tests.reference.bananas import BANANA, worst_p_value
from tests.reference.slow_kernels import kameleon_covariance

SPREADS = np.array([1.0, 2.0, 0.5])
KERNELS = [K.Gaussian(1.4), K.RationalQuadratic(1.4, alpha=2.0), K.InverseMultiquadric(SPREADS)]
KERNELS += [K.Matern32(1.4), K.Matern52(1.4), K.Linear(), K.Polynomial(2.0, degree=3)]


def one_fit(rng, config, num_dims=3, n=30):
    points = rng.normal(size=(n, num_dims)) @ np.diag(np.arange(1.0, num_dims + 1))
    factor = np.linalg.cholesky(np.cov(points.T))
    return points, local_proposal.fit(points, points.mean(axis=0), factor, config, rng)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_covariance_equals_the_formula(kernel, rng):
    """gamma^2 I + nu^2 M H M' literally, with the gradient of the public kernel; whitening off, then on."""
    for whiten in (False, True):
        config = ka.Config(kernel=kernel, whiten=whiten, gamma=0.3)
        points, fit = one_fit(rng, config)
        x = rng.normal(size=3)
        z = np.linalg.solve(fit.factor, x - fit.mean)
        whitened = np.linalg.solve(fit.factor, (points - fit.mean).T).T

        def gradient(a, b):
            return kernel.gradient(a[None], b[None])[0, 0]

        nu = 0.7 * fit.unit * np.sqrt(fit.normalizer)
        expected = fit.factor @ kameleon_covariance(gradient, z, whitened, 0.3, nu) @ fit.factor.T
        np.testing.assert_allclose(proposal_covariance(x, fit, config, 0.7), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("whiten", [True, False])
def test_ratio_is_that_of_the_two_normal_densities(whiten, rng):
    config = ka.Config(whiten=whiten)
    points, fit = one_fit(rng, config)
    state = ka.with_fit(ka.init(points[0], 0.0, config), fit)
    gamma, nu = config.widths(0.8 * fit.unit)
    x = state.position
    for _ in range(5):
        given = state.whitened, state.local, fit, gamma, nu, rng.standard_normal(3)
        y, _, local, log_ratio = local_proposal.propose(*given)
        forward = stats.multivariate_normal(x, proposal_covariance(x, fit, config, 0.8)).logpdf(y)
        backward = stats.multivariate_normal(y, proposal_covariance(y, fit, config, 0.8)).logpdf(x)
        assert log_ratio == pytest.approx(backward - forward, abs=1e-9)
        np.testing.assert_allclose(local, local_proposal.local_at(y, fit)[1], rtol=1e-9, atol=1e-12)


def test_frozen_transition_leaves_the_target_invariant(rng):
    config = ka.Config(num_basis=50, isotropic_share=0.1, kernel=K.Gaussian(0.5))
    learned_from = BANANA.sample(rng, 50)
    factor = np.diag(learned_from.std(axis=0))
    fit = local_proposal.fit(learned_from, learned_from.mean(axis=0), factor, config, rng)
    state = ka.with_fit(ka.init(np.zeros(2), 0.0, config), fit)
    points, _ = moved(rng, BANANA, partial(ka.relocate, state), partial(ka.step, config=config), 2500, 5)
    assert worst_p_value(points) > 1e-4


def test_refreshes_thin_out_and_end_with_nine_tenths_of_tuning(rng):
    target = correlated_gaussian(num_dims=3)
    states = []
    draws, state = run(ka, rng, target.log_density, np.zeros(3), ka.Config(num_basis=200), 2000, 500, states)
    changes = [t for t in range(1, 2500) if states[t].fit is not states[t - 1].fit]
    assert changes[-1] == 1799  # the last refresh, forced
    assert 5 < len(changes) < 60
    assert state.fit.points_t.shape == (3, 200)
    np.testing.assert_allclose(draws.std(axis=0), target.sample(rng, 50_000).std(axis=0), rtol=0.4)


def test_a_chain_that_never_moved_is_not_learned_from_nor_a_kernel_without_a_gradient_taken(rng):
    config = ka.Config(num_basis=10)
    state = ka.init(np.zeros(2), 0.0, config)
    for _ in range(300):
        state, info = ka.step(rng, state, lambda x: -np.inf, config)
        state = ka.adapt(rng, state, info, config)
    assert state.fit is None
    assert state.rejections == 300
    with pytest.raises(NotDifferentiableError, match="Laplace"):
        ka.Config(kernel=K.Laplace(1.0))


def test_repeated_positions_do_not_hide_the_length_scale(rng):
    """A sticky chain repeats itself; 500 points drawn from its record may then all coincide."""
    config = ka.Config(num_basis=1000)
    points = np.repeat(rng.normal(size=(4, 2)), [997, 1, 1, 1], axis=0)
    for seed in range(40):
        fit = local_proposal.fit(points, np.zeros(2), np.eye(2), config, np.random.default_rng(seed))
        assert 0.1 < 1 / fit.inverse_length_scale[0] < 10


def test_places_on_a_line_are_learned_from_and_a_refresh_that_fails_keeps_what_was_learned(rng, monkeypatch):
    """Their covariance is singular, so that the walk's shape whitens them: nothing may hang on a factor that fails."""
    config = ka.Config(num_basis=50, noisy=True)
    state = ka.init(np.zeros(2), 0.0, config)
    for t in rng.normal(size=40):
        state = state._replace(history=ka.append(state.history, np.array([t, 3.0 * t])))
    state = ka.refresh(rng, state, config)
    assert state.fit is not None
    np.testing.assert_array_equal(state.fit.factor, state.factor)
    config = ka.Config(num_basis=50)
    _, state = run(ka, rng, correlated_gaussian(num_dims=2).log_density, np.zeros(2), config, 500, 0)
    monkeypatch.setattr(ka, "fit", Mock(side_effect=np.linalg.LinAlgError))
    assert ka.refresh(rng, state, config) is state


def test_a_kernel_narrower_than_the_gaps_makes_no_giant_steps(rng):
    """The local covariance vanishes at such points; scaled to a trace of d there, it would be vast beside them."""
    config = ka.Config(kernel=K.Gaussian(1e-3), whiten=False)
    points, fit = one_fit(rng, config)
    beside = points[0] + np.array([1e-3, 0.0, 0.0])
    largest = max(np.trace(local_proposal.local_at(beside + 1e-3 * e, fit)[1]) for e in rng.normal(size=(200, 3)))
    assert largest < 3.1


def test_no_digits_are_lost_when_columns_are_nearly_parallel(rng):
    """Far from a small cluster all gradients point the same way: what is left is their tiny spread."""
    config = ka.Config(kernel=K.Polynomial(degree=3), whiten=False)
    offset, _ = config.kernel.shape_parameters
    points = rng.normal(size=(30, 2)) * 1e-3 + 1e3
    fit = local_proposal.fit(points, np.zeros(2), np.eye(2), config, rng)

    exact = points.astype(np.longdouble)
    columns = 2 * 3 * (offset + exact @ exact[0])[:, None] ** 2 * exact
    columns -= columns.mean(axis=0)
    expected = (fit.normalizer * columns.T @ columns).astype(float)
    np.testing.assert_allclose(local_proposal.local_at(points[0], fit)[1], expected, rtol=1e-7)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_scale_means_the_same_in_all_units(whiten, rng):
    """Parameters a thousand times as large give a proposal a thousand times as wide, at the same scale."""
    config = ka.Config(whiten=whiten)
    points = rng.normal(size=(60, 3)) @ np.diag([1.0, 2.0, 3.0])
    covariance = np.cov(points.T)

    def proposals(k):
        factor = k * np.linalg.cholesky(covariance)
        fit = local_proposal.fit(k * points, k * points.mean(axis=0), factor, config, np.random.default_rng(2))
        return np.array([proposal_covariance(k * x, fit, config, 0.8) for x in points])

    found = proposals(1.0)
    np.testing.assert_allclose(proposals(1000.0)[7], 1e6 * found[7], rtol=1e-7)
    # On the average over the points it is s^2 times the covariance of the sample, in size.
    if whiten:
        assert np.trace(np.linalg.solve(covariance, found.mean(axis=0))) == pytest.approx(3 * 0.8**2, rel=0.05)
    else:
        assert np.trace(found.mean(axis=0)) == pytest.approx(0.8**2 * np.trace(covariance), rel=0.1)


@pytest.mark.parametrize(("start", "bound"), [(None, 4 * 2.38 / np.sqrt(2)), (3.0, 4 * 2.38 / np.sqrt(2)), (9.0, 9.0)])
def test_chains_and_particles_have_one_bound(start, bound, rng):
    config = ka.Config(scale=start, num_basis=50)
    state = ka.init(np.zeros(2), 0.0, config)
    accepted = ka.Info(True, 1.0, 1.0, state.position, 0.0)
    for _ in range(300):
        state = ka.adapt(rng, state, accepted, config, 0)
    assert np.exp(state.log_scale) == pytest.approx(bound)
    moves = Kameleon(config, learning_rate=1.0)
    positions = rng.normal(size=(60, 2))
    particles = Evaluated(positions, np.zeros(60), np.zeros(60))
    learned = moves.fit(rng, particles, particles, 1.0, None)
    for _ in range(8):
        learned = moves.adapt(learned, moves.propose(rng, positions, learned), np.ones(60))
    assert moves.scale_of(learned) == pytest.approx(bound)
