import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from pymc_kernel import scores as S
from pymc_kernel import smc
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint
from pymc_kernel.mcmc import kameleon
from pymc_kernel.smc.moves import Differences, covariance_factor, fit_mixture
from tests.mcmc.chains import proposal_covariance
from tests.reference.bananas import BANANA, worst_p_value


def log_density(positions):
    return -0.5 * BANANA.level(positions)


def learned_from_elsewhere(moves, rng):
    """What moves learn from particles of another distribution: wrong place, wrong scale, no bend."""
    positions = rng.normal(size=(300, 2)) * [6.0, 4.0] + [2.0, 1.0]
    density = -0.5 * (((positions - [2.0, 1.0]) / [6.0, 4.0]) ** 2).sum(axis=1)
    particles = smc.Evaluated(positions, np.zeros(300), density)
    return moves.fit(rng, particles, particles, 1.0, None)


def moved(moves, rng, num_points=20_000, num_moves=3):
    """Draw exactly from the banana, move by frozen transitions, return positions and mean acceptance."""
    learned = learned_from_elsewhere(moves, rng)
    points = BANANA.sample(rng, num_points)
    rates = []
    for _ in range(num_moves):
        proposals = moves.propose(rng, points, learned)
        gains = log_density(proposals.positions) - log_density(points) + proposals.log_ratio
        probability = np.exp(np.minimum(gains, 0.0))
        accepted = rng.random(num_points) < probability
        points[accepted] = proposals.positions[accepted]
        rates.append(probability.mean())
    return points, np.mean(rates)


@dataclass(frozen=True)
class Turn(Differences):
    """Differences, or places anew, at every move."""

    is_anew: bool = False

    def fit(self, *args):
        return super().fit(*args)._replace(is_anew=self.is_anew)


MOVES = {
    "plain walk": smc.Walk(learn_covariance=False),
    "walk": smc.Walk(),
    "Kameleon": smc.Kameleon(),
    "Kameleon, raw": smc.Kameleon(kameleon.Config(whiten=False, gamma=0.5)),
    "Hamiltonian": smc.Hamiltonian(),
    "Hamiltonian, scores": smc.Hamiltonian(S.Lite(num_basis=100)),
    "differences": Turn(),
    "places anew": Turn(is_anew=True),
}


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
def test_every_move_is_invariant(moves, rng):
    points, rate = moved(moves, rng)
    assert rate > 0.02
    assert worst_p_value(points) > 1e-4


def test_kameleon_for_all_particles_is_kameleon_for_each(rng):
    moves = smc.Kameleon()
    learned = learned_from_elsewhere(moves, rng)._replace(log_scale=0.3)
    points = BANANA.sample(rng, 50)
    proposals = moves.propose(np.random.default_rng(3), points, learned)
    scale = np.exp(0.3)
    for x, y, ratio in zip(points, proposals.positions, proposals.log_ratio, strict=True):
        forward, backward = (proposal_covariance(p, learned.local, moves.config, scale) for p in (x, y))
        expected = stats.multivariate_normal(y, backward).logpdf(x) - stats.multivariate_normal(x, forward).logpdf(y)
        assert ratio == pytest.approx(expected, abs=1e-8)


def test_kameleon_remembers_where_particles_are(rng):
    """In place, as the sampler moves them: the next proposal is that of a proposal that remembers nothing."""
    moves = smc.Kameleon()
    learned = learned_from_elsewhere(moves, rng)
    points = BANANA.sample(rng, 300)
    proposals = moves.propose(rng, points, learned)
    learned = moves.adapt(learned, proposals, np.full(300, 0.3))
    accepted = rng.random(300) < 0.4
    points[accepted] = proposals.positions[accepted]
    for others in (points, points[::-1].copy()):
        remembered = moves.propose(np.random.default_rng(3), others, learned)
        fresh = moves.propose(np.random.default_rng(3), others, learned._replace(places=None))
        np.testing.assert_allclose(remembered.positions, fresh.positions, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(remembered.log_ratio, fresh.log_ratio, atol=1e-8)


def test_draws_do_not_depend_on_the_number_of_threads(rng, monkeypatch):
    for moves in (MOVES["Kameleon"], MOVES["Hamiltonian"]):
        learned = learned_from_elsewhere(moves, rng)
        points = BANANA.sample(rng, 2000)
        found = []
        for threads in (1, 2, 5):
            monkeypatch.setattr("pymc_kernel.parallel.num_threads", lambda threads=threads: threads)
            found.append(moves.propose(np.random.default_rng(5), points, learned))
        for other in found[1:]:
            np.testing.assert_array_equal(found[0].positions, other.positions)
            np.testing.assert_array_equal(found[0].log_ratio, other.log_ratio)


def test_the_scale_follows_the_mean_acceptance_and_without_a_surrogate_particles_walk(rng):
    moves = smc.Walk(learning_rate=1.0)
    learned = learned_from_elsewhere(moves, rng)
    proposals = moves.propose(rng, BANANA.sample(rng, 10), learned)
    assert moves.adapt(learned, proposals, np.full(10, 0.734)).log_scale == pytest.approx(learned.log_scale + 0.5)
    fixed = replace(moves, learn_scale=False)
    assert fixed.adapt(learned, proposals, np.full(10, 0.734)).log_scale == learned.log_scale
    moves = smc.Hamiltonian()
    positions = rng.normal(size=(50, 2))
    nowhere = smc.Evaluated(positions, np.full(50, -np.inf), np.zeros(50))
    learned = moves.fit(rng, nowhere, nowhere, 0.5, None)
    assert learned.fit is None
    assert moves.propose(rng, positions, learned).is_exploring.all()
    assert moves.scale_of(learned) == pytest.approx(2.38 / np.sqrt(2))


def test_collapsed_particles_are_an_error_and_impossible_places_have_no_density(rng):
    flat, line = np.column_stack([rng.normal(size=20), np.ones(20)]), rng.normal(size=(20, 1)) * [1.0, 2.0, -1.0]
    for positions in (flat, np.full((12, 1), 0.001), line):  # the mean of the second is rounded
        with pytest.raises(ValueError, match=f"into a subspace of the {positions.shape[1]}"):
            covariance_factor(positions)
    places = smc.Evaluated(np.zeros((4, 1)), np.array([0.0, -np.inf, np.nan, 1.0]), np.array([-np.inf, 1.0, 1.0, 2.0]))
    np.testing.assert_array_equal(places.log_density(0.5), [-np.inf, -np.inf, -np.inf, 2.0])
    np.testing.assert_array_equal(places.log_density(0.0)[[0, 3]], [-np.inf, 1.0])


MEANS = np.array([[0.0, 1.0], [300.0, -2.0]])
COVARIANCES = np.array([[[4.0, 1.0], [1.0, 1.0]], [[100.0, -3.0], [-3.0, 0.2]]])
MIXTURE = Joint(np.log([0.3, 0.7]), MEANS, np.linalg.inv(np.linalg.cholesky(COVARIANCES)))


def test_density_is_that_of_scipy(rng):
    points = MIXTURE.sample(600, rng)  # more than one block
    first, second = (stats.multivariate_normal(*moments) for moments in zip(MEANS, COVARIANCES, strict=True))
    exact = np.log(0.3 * first.pdf(points) + 0.7 * second.pdf(points))
    np.testing.assert_allclose(MIXTURE.log_densities(points), exact, rtol=1e-10)


def test_a_fit_finds_parts_that_are_apart_and_draws_in_many_dimensions_take_no_matrix_each(rng):
    points = MIXTURE.sample(3000, rng)
    fit = fit_mixture(rng, points)
    gain = MIXTURE.log_densities(points) - fit.log_densities(points)
    assert gain.mean() < 0.35  # nats: tails are heavier on purpose
    assert gain.max() < 2.5
    wide = Joint(np.zeros(1), np.zeros((1, 100)), np.eye(100)[None])
    tracemalloc.start()
    points = wide.sample(5000, rng)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * points.nbytes


@pytest.mark.parametrize("points", [np.zeros((5, 2)), np.ones((40, 3)), np.eye(6)])
def test_degenerate_points_give_a_density(points, rng):
    fit = fit_mixture(rng, points)
    assert np.isfinite(fit.log_densities(fit.sample(10, rng))).all()
