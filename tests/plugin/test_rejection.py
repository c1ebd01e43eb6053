import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.embeddings.inputs import typicality
from pymc_kernel.plugin.simulation.trust import findings
from pymc_kernel.plugin.warn import findings_in, report_all
from tests.plugin.parts import QUIET, check_moments


def accepted(**settings):
    """Of a model whose posterior is N(1.2, 0.2) and, of the other parameter, the prior."""
    with pm.Model():
        theta = pm.Normal("theta", 0, 1)
        pm.HalfNormal("unused", 1)
        pm.Normal("y", theta, 1, observed=np.full(4, 1.5))
        return pk.sample_abc(**QUIET, **settings)


def test_posterior_of_a_normal_model():
    idata = accepted(quantile=0.05, summary=np.mean, num_simulations=20_000)
    stats = idata["sample_stats"].to_dataset()
    assert int(stats["num_accepted"]) == 1000
    assert float(stats["accept"]) == pytest.approx(0.05)
    theta, unused = idata["posterior"]["theta"], idata["posterior"]["unused"]
    check_moments(theta, 1.2, np.sqrt(0.2), 4 / np.sqrt(800), 0.1)
    assert float(unused.mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=0.08)
    assert (unused > 0).all()


@pytest.mark.long
def test_without_adjustment_a_large_epsilon_shows():
    settings = {"quantile": 0.5, "summary": np.mean, "num_simulations": 4000}
    assert abs(float(accepted(**settings)["posterior"]["theta"].mean()) - 1.2) < 0.1
    said = r"a likelihood learned from the same simulations puts a mean 0\.\d+ posterior"
    with pytest.warns(UserWarning, match=said):
        plain = accepted(adjust=False, **settings)
    assert abs(float(plain["posterior"]["theta"].mean()) - 1.2) > 0.3


def test_statistics_say_how_good_the_answer_is():
    """The default on a model that it gets right: no warning, and the standard error of a mean of so many draws."""
    idata, again = (accepted(summary=np.mean, num_simulations=4000) for _ in range(2))
    stats = idata["sample_stats"]
    assert int(stats["num_accepted"]) == 120
    assert 0.5 / np.sqrt(120) < float(stats["learning_error"]) < 2.0 / np.sqrt(120)
    assert float(stats["typicality"]) > 0.05
    assert 90 < float(stats["num_effective"]) < 120
    np.testing.assert_array_equal(idata["posterior"]["theta"], again["posterior"]["theta"])


def test_every_coefficient_of_the_adjustment_has_ten_simulations():
    with pytest.warns(UserWarning, match="should not be trusted: .*sample_likelihood_free"):  # so few are
        assert int(accepted(num_simulations=500)["sample_stats"]["num_accepted"]) == 50


def test_chains_are_as_far_apart_as_sixty_simulations_make_them_and_together_as_far_off_as_one():
    """Means of sixty draws have standard errors of an eighth of their spread, whatever is resampled from them.

    Random weights of chains are one on average: independent ones would move the mean of all by a quarter of a chain.
    """
    settings = {"draws": 1000, "num_simulations": 2000, "summary": np.mean}
    one, chains = (accepted(**settings, **given)["posterior"]["theta"] for given in ({"chains": 1}, {}))
    assert chains.shape == (16, 1000)
    apart = float(chains.mean("draw").std(ddof=1))
    assert 0.06 < apart / float(chains.std("draw").mean()) < 0.35
    assert 0.0 < abs(float(chains.mean() - one.mean())) < 0.05 * apart


@pytest.mark.parametrize("wrong", [{"quantile": 0.0}, {"draws": 0}])
def test_mistakes_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        accepted(**wrong)


# -- what is said of posteriors from simulations ----------------------------------------------------------


def test_typicality_of_what_the_model_simulates_is_uniform(rng):
    """Each point among all others: of two points one is the more typical, so that the mean is one half by symmetry."""
    summaries = rng.standard_normal((120, 2)) @ np.array([[1.0, 0.0], [0.9e3, 1e2]])
    shares = [typicality(np.delete(summaries, i, axis=0), summaries[i, None], rng)[0] for i in range(120)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1.0 / 12.0, rel=0.1)
    # A combination that never occurs is far, though its neighbors are near.
    line = rng.standard_normal((2000, 1)) + 0.02 * rng.standard_normal((2000, 2))
    assert typicality(line, np.array([[0.08, -0.08]]), rng)[0] == 0.0
    assert typicality(line, np.array([[0.08, 0.08]]), rng)[0] > 0.2


def test_every_finding_is_said_beyond_its_bound_alone():
    assert findings(0.02, 31.0, 0.31, ["", ""]) == []
    words = findings(0.004, 29.0, 0.33, ["", "more"])
    for said, number in zip(words, ("only 0.4 %", "number of 29", "by 0.33 posterior", "more"), strict=True):
        assert number in said
    stats = xr.Dataset()
    with pytest.warns(UserWarning, match=r"should not be trusted: a; b\. Do this"):
        report_all(["a", "b"], "Do this.", stats)
    report_all([], "Do this.", stats)
    assert findings_in(stats) == ["this posterior should not be trusted: a; b. Do this."]
