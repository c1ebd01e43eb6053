import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings.fitted_rule import calibration_of


def exact(rng, num_cases=2000, num_draws=9, num_latents=2):
    """Truths are one more draw of each posterior."""
    centers = rng.normal(size=(num_cases, 1, num_latents))
    both = centers + rng.normal(size=(num_cases, num_draws + 1, num_latents))
    return both[:, 1:], both[:, 0]


def test_ranks_of_truths_are_uniform_for_any_number_of_draws(rng):
    draws, truths = exact(rng)
    found = calibration_of(draws, truths, rng)
    for ranks in (*found.ranks.T, found.regions):
        assert stats.kstest(ranks, "uniform").pvalue > 0.01
        # Tests of uniformity take a rank of zero or one as proof.
        assert ((ranks > 0.0) & (ranks < 1.0)).all()
    assert found.worst_gap() < 4.0
    # Equal values share their place.
    tied = calibration_of(np.round(draws), np.round(truths), rng)
    assert stats.kstest(tied.ranks[:, 0], "uniform").pvalue > 0.01
    narrow = calibration_of(0.5 * draws, truths, rng)
    assert stats.kstest(narrow.ranks[:, 0], "uniform").pvalue < 1e-6
    assert narrow.worst_gap() > 8.0


def test_a_calibration_prints_in_a_few_lines(rng):
    found = calibration_of(*exact(rng, num_cases=400, num_latents=12), rng)
    said = repr(found)
    assert f"largest gap: {found.worst_gap():.1f} standard errors" in said
    assert len(said.splitlines()) == 12
    assert max(map(len, said.splitlines())) < 120


def test_calibration_has_errors_of_shares_and_no_units(rng):
    draws, truths, units = rng.standard_normal((150, 40, 2)), rng.standard_normal((150, 2)), np.array([1e-3, 1e6])
    found, other = (calibration_of(draws * u, truths * u, np.random.default_rng(3)) for u in (1.0, units))
    np.testing.assert_allclose(found.standard_error, np.sqrt(found.levels * (1.0 - found.levels) / 150))
    for name in ("ranks", "regions", "coverage", "tarp"):
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name))
    gaps = np.column_stack([found.coverage, found.tarp]) - found.levels[:, None]
    assert found.worst_gap() == pytest.approx(np.abs(gaps / found.standard_error[:, None]).max())
