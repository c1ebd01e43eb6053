import numpy as np
import pytest

from pymc_kernel.mcmc.trajectory import (
    choose_chain_length,
    largest_correlation,
    surrogate_chains,
)
from pymc_kernel.scores import Values


def quadratic(precisions):
    """The log density of independent normals as a surrogate."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((60, len(precisions)))
    return Values().fit(points, -0.5 * (precisions * points**2).sum(axis=1), rng, noisy=False).expansion


@pytest.mark.parametrize("work", [0.0, 1e6])
def test_many_chains_at_once_are_those_one_by_one(work, rng):
    """Bit for bit, in one thread or several."""
    x = rng.normal(size=(60, 3))
    expansion = Values().fit(x, np.sin(x).sum(axis=1) - 0.5 * (x**2).sum(axis=1), rng, noisy=False).expansion
    momenta, uniforms = rng.standard_normal((20, 4, 3)), rng.random((20, 4))
    lengths, sizes = rng.integers(1, 9, (20, 4)), rng.uniform(0.1, 1.5, (20, 4))
    together = surrogate_chains(x[:20], momenta, uniforms, lengths, sizes, expansion, work)
    for i in range(20):
        one = (a[i : i + 1] for a in (x, momenta, uniforms, lengths, sizes))
        for many, alone in zip(together, surrogate_chains(*one, expansion), strict=True):
            np.testing.assert_array_equal(many[i], alone[0])
    assert (np.abs(together[0] - x[:20]).sum(axis=1) > 0.0).sum() > 5


def test_the_largest_correlation(rng):
    before = rng.normal(size=(500, 3)) + 1e3
    after = np.column_stack([-0.8 * before[:, 0] + rng.normal(size=500), rng.normal(size=500), np.ones(500)])
    expected = max(abs(np.corrcoef(before[:, j], after[:, j])[0, 1]) for j in range(2))
    assert largest_correlation(before, after) == pytest.approx(expected, abs=1e-9)
    assert largest_correlation(before, np.ones((500, 3))) == 0.0


@pytest.mark.parametrize(("num_steps", "least", "most"), [(6, 3, 8), (1, 32, 32)])
def test_a_chain_is_as_long_as_it_takes_to_forget(num_steps, least, most, rng):
    """On a normal surrogate, where trajectories turn: three to six steps of .25, or less, keep .7 on the average."""
    starts = rng.standard_normal((400, 2))
    length = choose_chain_length(rng, starts, 0.25, num_steps, quadratic(np.ones(2)))
    assert least <= length <= most
