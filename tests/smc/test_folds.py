import math

import numpy as np
import pytest

from benchmarks.evidence_bias import biases, log_errors
from pymc_kernel import scores as S
from pymc_kernel.smc import Evaluated, Hamiltonian, Kameleon, Walk, folds

MOVES = {
    "walk": Walk(),
    "Kameleon": Kameleon(),
    "Hamiltonian": Hamiltonian(),
    "Hamiltonian, scores": Hamiltonian(S.Lite(num_basis=50)),
}


def normal_particles(rng, n=100, d=2):
    positions = rng.normal(size=(n, d))
    return Evaluated(positions, -0.5 * (positions**2).sum(axis=1), np.zeros(n))


def test_descendants_stay_in_the_fold_of_their_ancestors_and_one_that_has_outgrown_is_parted_between_families(rng):
    np.testing.assert_array_equal(folds.split(100, 4), [0, 25, 50, 75, 100])
    for num_folds in (2, 4):
        labels, edges = np.arange(num_folds).repeat(100 // num_folds), folds.split(100, num_folds)
        for _ in range(4):
            ancestors = np.sort(rng.choice(100, size=100, p=rng.dirichlet(np.ones(100))))
            labels, edges = labels[ancestors], folds.descend(edges, ancestors, num_folds)
            sizes = np.diff(edges)
            assert edges[0] == 0
            assert edges[-1] == sizes.sum() == 100
            if np.bincount(labels).max() <= 100 * (num_folds + 1) / (2 * num_folds):
                np.testing.assert_array_equal(labels[1:] != labels[:-1], np.isin(np.arange(1, 100), edges))
            else:
                break
    ancestors = np.array([0, 1, 1, 2, 2, 2, 3, 3, 4, 9])
    np.testing.assert_array_equal(folds.descend(folds.split(10, 2), ancestors, 2), [0, 3, 9, 10])
    np.testing.assert_array_equal(folds.descend(folds.split(10, 1), ancestors, 1), [0, 10])
    np.testing.assert_array_equal(folds.descend(np.array([0, 1, 10]), np.full(10, 4), 2), [0, 10])


@pytest.mark.parametrize("name", MOVES)
def test_a_fold_learns_nothing_from_its_own_particles(name, rng):
    """What is evaluated is shared: the surrogate from values may see all of it, the walk beside it may not."""
    moves, particles, edges = MOVES[name], normal_particles(rng), np.array([0, 40, 100])
    first = folds.fit(np.random.default_rng(1), moves, particles, particles, 1.0, None, edges)
    for own in range(2):
        changed = particles.positions.copy()
        changed[edges[own] : edges[own + 1]] *= 3.0
        others = particles._replace(positions=changed)
        second = folds.fit(np.random.default_rng(1), moves, others, particles, 1.0, None, edges)
        for k in range(2):
            one, other = (shape_of(f.learned[k]) for f in (first, second))
            assert np.array_equal(one, other) == (k == own)


def shape_of(learned):
    """Return the numbers that proposals of the walk or of Kameleon are drawn with."""
    if hasattr(learned, "local"):
        return np.concatenate([learned.local.factor.ravel(), learned.local.points_t.ravel()[:20]])
    return (learned.walk if hasattr(learned, "walk") else learned).factor


def test_few_others_are_joined_by_all(rng):
    particles = normal_particles(rng, 100, 3)
    edges = np.array([0, 96, 100])  # the others of the first fold are four
    fitted = folds.fit(rng, Walk(), particles, particles, 1.0, None, edges)
    covariances = [f.factor @ f.factor.T for f in fitted.learned]
    np.testing.assert_allclose(covariances[0], np.cov(particles.positions.T, bias=True), rtol=1e-6)
    np.testing.assert_allclose(covariances[1], np.cov(particles.positions[:96].T, bias=True), rtol=1e-6)


def test_exact_draws_keep_their_spread_when_moved_by_what_the_others_teach():
    """50 exact draws of a normal in nine dimensions, five moves; learned from themselves they draw together.

    The change of the mean square has mean zero for exact moves, and a smaller variance than the mean square.
    """
    gained = {}
    for num_folds in (1, 4):
        changes = []
        for seed in range(300):
            rng = np.random.default_rng(seed)
            particles = normal_particles(rng, 50, 9)
            edges = folds.split(50, num_folds)
            fitted = folds.fit(rng, Walk(), particles, particles, 1.0, None, edges)
            x = particles.positions.copy()
            for _ in range(5):
                y = folds.propose(rng, Walk(), x, fitted).positions
                accepted = rng.random(50) < np.exp(0.5 * ((x**2).sum(axis=1) - (y**2).sum(axis=1)))
                x[accepted] = y[accepted]
            changes.append((x**2).mean() - (particles.positions**2).mean())
        gained[num_folds] = np.mean(changes) / (np.std(changes) / math.sqrt(300))
    assert abs(gained[4]) < 3.5
    assert gained[1] < -5.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain walk", "pk.ASMC"])
def test_the_evidence_of_few_particles_is_not_too_large(name):
    """A false alarm of one in ten thousand; the bias of moves that learn from those they move is .18."""
    errors = log_errors(name, 1000)
    for value, error in biases(errors)[:2]:
        assert abs(value) < 0.02 + 3.7 * error
    if name == "pk.ASMC":
        value, error = biases(log_errors("pk.ASMC, one fold", 600))[1]
        assert value > 4.0 * error
