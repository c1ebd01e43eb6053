"""Targets on which the package meets rivals: their exact answers are right, and weights of draws count."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import evidence_rivals, pints_problems
from benchmarks.posteriors.drawn import drawn


def by_importance(target, draws, rng, num_kernels=500, num_draws=6000):
    """Return the log evidence from draws of a mixture of Student kernels at exact draws."""
    d = target.num_dims
    width = num_kernels ** (-1.0 / (d + 4.0)) * draws.std(axis=0)
    centers = draws[rng.choice(len(draws), num_kernels, replace=False)]
    kernel = stats.multivariate_t(np.zeros(d), np.eye(d), df=5, seed=rng)
    x = centers[rng.integers(num_kernels, size=num_draws)] + width * kernel.rvs(num_draws).reshape(-1, d)
    density = np.mean([kernel.pdf((x - center) / width) for center in centers], axis=0) / np.prod(width)
    prior = stats.norm.logpdf(x, target.mean, target.spread).sum(axis=1)
    logs = prior + np.array([target.log_likelihood(row) for row in x]) - np.log(density)
    weights = np.exp(logs - logs.max())
    return math.log(weights.mean()) + logs.max(), weights.std() / weights.mean() / math.sqrt(num_draws)


@pytest.mark.parametrize("family", ["mixture", "ring"])
def test_evidence_of_what_a_seed_draws(rng, family):
    target = evidence_rivals.fresh(family, 3)
    found, error = by_importance(target, drawn(family, 3).exact["x"], rng)
    assert error < 0.05
    assert found == pytest.approx(target.log_evidence, abs=4.0 * error)


def test_exact_draws_have_no_errors_but_those_of_chance(rng):
    target = evidence_rivals.banana()
    x = evidence_rivals.tempered.TARGET.sample(rng, 20_000)
    assert np.abs(target.errors(x, np.full(len(x), 1.0 / len(x)))).max() < 0.06
    half = np.where(x[:, 0] > 0.0, 1.0, 0.0)
    assert target.errors(x, half / half.sum())[0] == pytest.approx(math.sqrt(2.0 / math.pi), abs=0.05)


def test_draws_of_the_rosenbrock_density_on_its_rectangle(rng):
    x = pints_problems.rosenbrock(rng, 100_000)
    a, b = np.meshgrid(np.linspace(-2.0, 4.0, 3001), np.linspace(-1.0, 12.0, 3251), indexing="ij")
    weights = 1.0 / (1.0 + (1.0 - a) ** 2 + 100.0 * (b - a**2) ** 2)
    weights /= weights.sum()
    for grid, column in zip((a, b), x.T, strict=True):
        mean = (weights * grid).sum()
        spread = math.sqrt((weights * (grid - mean) ** 2).sum())
        assert column.mean() == pytest.approx(mean, abs=0.015 * spread)
        assert column.std() == pytest.approx(spread, rel=0.015)


def test_draws_of_the_annulus_and_the_cone(rng):
    radii = np.linalg.norm(pints_problems.annulus(rng, 100_000), axis=1)
    assert radii.mean() == pytest.approx(10.1, abs=0.015)  # (r0^2 + sigma^2) / r0
    radii = np.linalg.norm(pints_problems.cone(rng, 100_000), axis=1)
    grid = np.linspace(1e-6, 400.0, 400_001)
    weights = grid * np.exp(-(grid**0.6))
    mean = (weights * grid).sum() / weights.sum()
    assert radii.mean() == pytest.approx(mean, rel=0.015)
