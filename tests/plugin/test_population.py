import math

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.warn import findings_in
from tests.plugin.models import black_box_model
from tests.plugin.test_smc import TRUTH, conjugate_model, noisy_model, several_variables

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small")


def sample(model, draws=400, seed=2, **kwargs):
    with model:
        return pk.sample_pmc(draws, iterations=8, random_seed=seed, progressbar=False, **kwargs)


@pytest.mark.machine_code
def test_evidence_and_posterior_of_a_conjugate_model():
    idata = sample(conjugate_model())
    told = idata["pmc_stats"]
    np.testing.assert_allclose(told["log_evidence"], TRUTH, atol=0.1)
    sd = math.sqrt(1 / (3 + 1 / 9))
    for mu in (idata["posterior"]["mu"].values.ravel(), weighted(idata, "mu")):
        assert mu.mean() == pytest.approx(np.sum([1, 2, 4]) * sd**2, abs=5 * sd / math.sqrt(800))
        assert mu.std() == pytest.approx(sd, rel=0.12)
    assert float(told["pareto_k"].max()) < 0.7
    assert told["ess"].min() > 400
    assert told.sizes == {"chain": 2, "iteration": 8}


def weighted(idata, name):
    """Draws resampled by the weights that were kept."""
    group = idata["weighted_posterior"]
    weights = np.exp(group["log_weight"].values.ravel())
    draws = group[name].values.ravel()
    return np.random.default_rng(0).choice(draws, 5000, p=weights / weights.sum())


@pytest.mark.filterwarnings("ignore:The weights have a Pareto shape")
def test_weights_are_normalized_and_rows_agree():
    idata = sample(several_variables())
    group = idata["weighted_posterior"]
    np.testing.assert_allclose(np.exp(group["log_weight"]).sum("draw"), 1.0)
    np.testing.assert_allclose(group["total"], group["x"].sum(("x_dim_0", "x_dim_1")))
    assert (group["sigma"] > 0).all()
    assert idata["posterior"].sizes["draw"] == 400
    # A draw is one place, in the equally weighted group too.
    drawn = idata["posterior"]
    np.testing.assert_allclose(drawn["total"], drawn["x"].sum(("x_dim_0", "x_dim_1")))
    np.testing.assert_array_equal(idata["observed_data"]["y"], [0.5, 1.5])


@pytest.mark.filterwarnings("ignore:The weights have a Pareto shape")
@pytest.mark.long
def test_a_noisy_likelihood():
    model = noisy_model()
    idata = sample(model, draws=600)
    assert float(idata["posterior"]["theta"].std()) == pytest.approx(math.sqrt(16 / 17), rel=0.12)
    assert float(np.exp(idata["pmc_stats"]["log_evidence"]).mean()) == pytest.approx(1 / math.sqrt(17), rel=0.25)
    first, second = idata["posterior"]["theta"].values
    assert not np.array_equal(first, second)
    few, again = sample(model, draws=150), sample(model, draws=150)
    np.testing.assert_array_equal(again["posterior"]["theta"], few["posterior"]["theta"])


def test_a_black_box_and_a_start_of_ones_own():
    start = np.random.default_rng(0).normal(size=(400, 2))
    idata = sample(black_box_model(), start=start)
    np.testing.assert_allclose(idata["pmc_stats"]["log_evidence"], -math.log(2.0), atol=0.1)
    for wrong, message in ((start[:10], "400 rows"), (np.column_stack([start, start]), "has 4 dimensions")):
        with pytest.raises(ValueError, match=message):
            sample(black_box_model(), start=wrong)


@pytest.mark.filterwarnings("ignore:The weights have a Pareto shape")
def test_a_start_far_off_with_a_small_likelihood_is_left_behind():
    """Start particles have no true weight: with an evidence of exp(-400) they would outweigh all draws."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 10.0, shape=2)
        pm.Normal("y", x.sum(), 1.0, observed=4.0 + rng.normal(size=300))
    found = sample(model, start=rng.normal(-5.0, 1.0, size=(400, 2)))
    other = sample(model)
    np.testing.assert_allclose(found["pmc_stats"]["log_evidence"], other["pmc_stats"]["log_evidence"].mean(), atol=0.5)


def test_weights_that_a_few_draws_carry_are_reported():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1000.0, shape=6)
        pm.Normal("y", x, 1e-3, observed=np.zeros(6))
    with model, pytest.warns(UserWarning, match="Pareto shape"):
        idata = pk.sample_pmc(20, iterations=2, chains=1, random_seed=1, progressbar=False)
    assert "Pareto shape" in findings_in(idata["pmc_stats"])[0]


@pytest.mark.parametrize(("iterations", "chains"), [(6, 2), (2, 1)])
def test_draws_of_interrupted_chains_are_of_the_iterations_that_are_shown(iterations, chains):
    """The second of two chains ends after so many of eight iterations."""
    calls = []

    def estimate(rng, theta, observed):
        calls.append(1)
        if len(calls) == 100 * (9 + 1 + iterations) + 50:
            raise KeyboardInterrupt
        return -0.5 * float(theta) ** 2

    with pm.Model():
        theta = pm.Normal("theta")
        pk.EstimatedLikelihood("y", estimate, theta, observed=0.0)
        idata = pk.sample_pmc(100, iterations=8, chains=2, random_seed=1, progressbar=False)
    stats = idata["pmc_stats"]
    done = iterations if chains == 2 else 8
    assert (stats.sizes["chain"], stats.sizes["iteration"]) == (chains, done)
    of_iterations = np.log(np.exp(stats["log_evidence_of_iteration"].values[:, done // 2 :]).mean(axis=1))
    np.testing.assert_allclose(stats["log_evidence"], of_iterations, rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"draws": 5}, ValueError, "draws must be"),
        ({"chains": 0}, ValueError, "chains must be"),
        ({"drift": "up"}, ValueError, "drift must be"),
        ({"weights": "equal"}, ValueError, "weights must be"),
    ],
)
def test_settings_are_checked(settings, error, message):
    with pytest.raises(error, match=message):
        sample(conjugate_model(), **settings)


@pytest.mark.long
def test_priors_that_round_to_their_bounds():
    with pm.Model() as model:
        p = pm.Beta("p", 0.1, 0.1)
        pm.Binomial("y", 10, p, observed=4)
    # The beta-binomial probability of four out of ten.
    logs = [math.lgamma(v) for v in (4.1, 6.1, 10.2, 0.1, 0.1, 0.2, 11.0, 5.0, 7.0)]
    exact = logs[0] + logs[1] - logs[2] - (logs[3] + logs[4] - logs[5]) + logs[6] - logs[7] - logs[8]
    for idata in (sample(model, draws=1500), smc_of(model)):
        told = idata["pmc_stats"] if "pmc_stats" in idata.children else idata["smc_stats"]
        assert float(told["log_evidence"].mean()) == pytest.approx(exact, abs=0.25)


def smc_of(model):
    with model:
        return pk.sample_smc(
            1500, pk.ASMC, chains=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
