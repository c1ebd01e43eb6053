"""Posteriors by a likelihood that is learned in rounds of simulations of a model."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import ImputationWarning
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.plugin.simulation import likelihood_free, trust
from pymc_kernel.plugin.warn import findings_in
from pymc_kernel.rounds import Calibration, Checks
from tests.plugin.models import Ends
from tests.plugin.parts import check_moments, data_around

QUIET = {"chains": 4, "progressbar": False, "random_seed": 1}
ONE = QUIET | {"chains": 1, "rounds": 1}
FEW = QUIET | {"chains": 1, "rounds": 3, "num_simulations": 120, "draws": 50}
NOISE = 0.5


def simulator(rng, theta, size):
    return rng.normal(theta, NOISE, size)


def conjugate_model(data=1.0, simulate=simulator):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0)
        pm.Simulator("y", simulate, theta, observed=[data])
    return model


@pytest.fixture(scope="module")
def conjugate():
    return pk.sample_likelihood_free(num_simulations=600, return_fitted=True, model=conjugate_model(), **QUIET)


def run(simulate=simulator, *, data=1.0, **settings):
    return pk.sample_likelihood_free(model=conjugate_model(data, simulate), **settings)


def test_mean_spread_and_quantiles_of_a_conjugate_model(conjugate):
    idata, _ = conjugate
    variance = 1.0 / (1.0 + NOISE**-2)
    exact = stats.norm(variance / NOISE**2, np.sqrt(variance))
    draws = idata["posterior"]["theta"].values
    assert draws.shape == (4, 1000)
    check_moments(draws, exact.mean(), exact.std(), 0.12, 0.12)
    assert np.quantile(draws, [0.05, 0.95]) == pytest.approx(exact.ppf([0.05, 0.95]), abs=0.25 * exact.std())
    evidence = stats.norm(0.0, np.hypot(1.0, NOISE)).logpdf(1.0)
    np.testing.assert_allclose(idata["sample_stats"]["log_evidence"], evidence, atol=0.3)
    assert 0.0 < float(idata["sample_stats"]["learning_error"]) < 0.2


def test_likelihood_groups_and_statistics(conjugate):
    idata, likelihood = conjugate
    places = np.array([[0.2], [1.1]])
    expected = np.diff(stats.norm(places[:, 0], NOISE).logpdf(1.0))
    np.testing.assert_allclose(np.diff(likelihood(places)), expected, atol=0.4)
    rounds = idata["round_stats"]
    assert rounds["num_simulations"].sum() == 600
    assert float(rounds["power"][0]) == 0.0
    assert idata["prior"].sizes["draw"] == idata["prior_predictive"].sizes["draw"] == 600
    np.testing.assert_array_equal(np.bincount(idata["prior"]["round"]), rounds["num_simulations"])
    later = idata["prior"]["theta"].values[0, idata["prior"]["round"].values > 0]
    assert later.std() < 0.8  # later rounds simulate nearer to the posterior than the prior is
    assert 0.3 < float(idata["sample_stats"]["place"]) <= 1.0
    assert set(idata.children) >= {"posterior", "observed_data", "sample_stats"}


def test_constants_that_pytensor_locks_do_not_stop_draws_of_the_prior():
    """The scale of a half-normal prior, folded to a view of a locked array, once stopped SciPy's sampler."""
    with pm.Model(), warnings.catch_warnings(action="ignore", category=UserWarning):  # few simulations are too few
        spread = pm.HalfNormal("spread", 1.0)
        pm.Simulator("y", lambda rng, s, size: rng.normal(0.0, s, size), spread, observed=np.array([1.0, -0.3, 0.5]))
        settings = QUIET | {"summary": np.std, "num_simulations": 100, "rounds": 2, "chains": 1}
        idata = pk.sample_likelihood_free(100, **settings)
    assert (idata["posterior"]["spread"] > 0.0).all()


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_an_executor_changes_nothing(tmp_path):
    log = tmp_path / "calls"  # a file: the simulator is copied on its way

    def counted(rng, theta, size):
        with log.open("a") as file:
            file.write("x")
        return rng.normal(theta, NOISE, size)

    settings = FEW | {"rounds": 2, "model": conjugate_model(simulate=counted)}
    whole = pk.sample_likelihood_free(store=tmp_path / "kept", **settings)
    assert log.stat().st_size >= 120
    log.unlink()
    again = pk.sample_likelihood_free(store=tmp_path / "kept", **settings)
    assert not log.exists()
    with ThreadPoolExecutor(2) as executor:
        together = pk.sample_likelihood_free(executor=executor, **settings)
    for other in (again, together):
        np.testing.assert_array_equal(whole["posterior"]["theta"], other["posterior"]["theta"])


@pytest.mark.parametrize(("at", "left"), [(41, 40), (60, 59)], ids=["before the first batch", "within a round"])
def test_interrupted_it_returns_what_is_finished(at, left):
    ends = Ends(at, KeyboardInterrupt)
    with warnings.catch_warnings(action="ignore"):  # a round is not finished, and few simulations are not trusted
        idata = run(ends, **FEW)
    assert (idata["prior"].sizes["draw"], ends.calls) == (left, at)
    with pytest.raises(KeyboardInterrupt):
        run(Ends(1, KeyboardInterrupt), **FEW)


def test_rounds_are_kept_when_all_simulations_of_a_later_one_fail():
    with pytest.warns(UserWarning, match="all 40 simulations failed.*no licence.*by the rounds before"):
        idata = run(Ends(41, RuntimeError("no licence")), **FEW)
    assert idata["prior"].sizes["draw"] == 40
    with pytest.raises(ValueError, match="all 40 simulations failed; the first error: RuntimeError: no solver"):
        run(Ends(1, RuntimeError("no solver")), num_simulations=40, **ONE)


def test_failed_simulations_are_left_out_and_counted():
    def failing(rng, theta, size):
        return np.full(size, np.nan) if rng.random() < 0.2 else rng.normal(theta, NOISE, size)

    left_out = r"of 200 simulations .* NaN or infinite numbers and are left out\. Since the data were observed"
    with pytest.warns(UserWarning, match=left_out):
        idata = run(failing, num_simulations=200, **ONE)
    assert 20 <= int(idata["sample_stats"]["num_failed"]) <= 60
    assert np.isfinite(idata["sample_stats"]["held_out_spread"])
    assert float(idata["posterior"]["theta"].mean()) == pytest.approx(0.8, abs=0.2)


@pytest.mark.long
def test_a_posterior_that_is_too_narrow_is_said_with_the_figure():
    """A value and its square: the learned density takes them for two."""
    with pytest.warns(UserWarning, match="posteriors of theta are too narrow: true values spread") as said:
        found = run(num_simulations=300, summary=lambda y: [y[0], y[0] ** 2], **ONE)["sample_stats"]
    assert any(f"spread {float(found['held_out_spread']):.2f} times as far" in str(one.message) for one in said)
    assert 20 < float(found["num_held_out"]) <= 300


def test_what_folds_say_in_words():
    def said(mean, spread, tails, error):
        calibration = Calibration(400.0, np.array(mean), np.array(spread), np.array(tails))
        return likelihood_free._words_of(Checks(calibration, error), ["a", "b[0]"])

    words = said([0.02, -0.4], [1.6, 1.01], [[0.12, 0.05], [0.05, 0.015]], 0.12)
    numbers = ("12 %", " 1.60 ", " 0.40 ", " 12.0 %", " 1.5 %")
    assert [number in one for number, one in zip(numbers, words, strict=True)] == [True] * 5
    assert said([0.1, 0.1], [1.0, 1.0], [[0.04, 0.07], [0.035, 0.06]], 0.01) == []


@pytest.mark.parametrize(("shift", "is_said"), [(0.15, False), (0.3, True)])
def test_chains_that_lie_apart_are_the_error_of_learning(rng, shift, is_said):
    """Four chains whose means are a multiple of (-1, -1, 1, 1) apart, the third twice as wide."""
    unit = rng.standard_normal((20_000, 1))
    chains = [trust.Weighted(c * shift + (2.0 if i == 2 else 1.0) * unit) for i, c in enumerate((-1, -1, 1, 1))]
    whole = trust.Weighted(np.concatenate([chain.points for chain in chains]))
    error, spread = trust.learning_errors(whole, chains).values()
    assert error == pytest.approx(shift * np.sqrt(4.0 / 3.0) / np.sqrt(7.0 / 4.0 + shift**2), rel=0.03)
    assert spread == pytest.approx(np.log(2.0) / 2.0, rel=1e-6)
    assert bool(trust.differences(error)) == is_said
    assert np.isnan(list(trust.learning_errors(whole, chains[:1]).values())).all()


@pytest.mark.long
def test_data_that_no_simulation_is_like_are_said():
    with pytest.warns(UserWarning, match="should not be trusted: the data are in a place"):
        idata = run(data=12.0, num_simulations=100, **ONE)
    assert "the data are in a place" in findings_in(idata["sample_stats"])[0]


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"num_simulations": 0}, ValueError, "num_simulations must be a whole number"),
        ({"rounds": 2.5}, ValueError, "rounds must be a whole number"),
        ({"num_simulations": 3, "rounds": 5}, ValueError, "too few for 5 rounds"),
        ({"estimator": "best"}, TypeError, r"estimator must be LearnedLikelihood\(\)"),
        ({"estimator": pk.likelihood_free.LearnedLikelihood}, TypeError, "got <class"),
        ({"simulations": 5}, TypeError, "unexpected keyword argument 'simulations'"),
        ({"summary": 3}, TypeError, "summary must be a function"),
        ({"store": "kept"}, ValueError, "store needs random_seed"),
    ],
)
def test_wrong_arguments_are_named_before_any_simulation(settings, error, match):
    with pytest.raises(error, match=match):
        run(Ends(1, AssertionError("simulated")), **settings)


def test_models_that_cannot_be_learned_are_refused():
    discrete = data_around(lambda: pm.Poisson("n", 3.0), 1.0)
    with pytest.raises(ValueError, match="n: sample_likelihood_free draws continuous parameters only"):
        pk.sample_likelihood_free(model=discrete)
    for data, match in (([np.nan], "all data are missing"), ([1.0, np.nan], "y_unobserved: missing data of a simul")):
        with pm.Model() as missing, warnings.catch_warnings(action="ignore", category=ImputationWarning):
            pm.Simulator("y", simulator, pm.Normal("theta", 0.0, 1.0), observed=data)
        with pytest.raises(ValueError, match=match):
            pk.sample_likelihood_free(model=missing)


def test_draws_of_a_variable_without_density_are_diagnosed(capsys):
    def random(mean, rng, size):
        return rng.normal(mean, 0.5)

    with pm.Model():
        mean = pm.Normal("mean", shape=2)
        pm.CustomDist("y", mean, random=random, signature="(n)->(n)", observed=[1.0, 0.0])
        idata = pk.sample_likelihood_free(300, rounds=1, **QUIET)
        _, found = pk.diagnose(idata, return_diagnostics=True)
    shown, draws = capsys.readouterr().out, idata["posterior"]["mean"].values
    assert "the log density of this model is not known" in shown
    for i in range(2):
        error = draws[..., i].mean(axis=1).std(ddof=1) / draws[..., i].std()
        assert f"mean[{i}] {error:.2f}" in shown
    assert "ksd" not in found
