import re
from itertools import count

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kernel as pk
from tests.plugin.models import abc_model, normal_simulator, same_draws, sample
from tests.plugin.parts import PLAIN, check_moments

MEAN, SPREAD = 1.0 / 2.25, np.sqrt(1.25 / 2.25)  # the observation seen with noise of variance 1 + epsilon^2


def assert_exact(draws, effective=None, mean=MEAN, spread=SPREAD):
    effective = effective or float(az.ess(draws))
    check_moments(draws, mean, spread, 3.5 / np.sqrt(effective), 3.5 / np.sqrt(2.0 * effective))


@pytest.mark.machine_code
def test_posterior_is_the_exact_abc_posterior():
    theta = sample(abc_model(), pk.KernelHMC, cores=1, draws=2000, tune=500)["posterior"]["theta"]
    assert float(az.ess(theta)) > 150
    assert_exact(theta)


def test_sequential_monte_carlo_tells_its_settings():
    idata = pk.sample_smc(60, pk.ASMC, model=abc_model(num_simulations=4), **PLAIN | {"chains": 1})
    told = idata["smc_stats"]
    assert idata["constant_data"]["y_num_simulations"] == 4
    assert (told.attrs["surrogate"], told.attrs["smc_kernel"]) == (0, "ASMC")
    assert float(np.nanmin(told["epsilon_y"])) == pytest.approx(0.5)


@pytest.mark.long
def test_sequential_monte_carlo_finds_it_too_and_says_its_bandwidths(tmp_path):
    settings = {"model": abc_model(epsilon=[[0.25]]), "chains": 2, "random_seed": 3, "progressbar": False}
    idata, again = (pk.sample_smc(500, pk.KASMC, cores=cores, **settings) for cores in (2, 1))
    np.testing.assert_array_equal(idata["posterior"]["theta"], again["posterior"]["theta"])
    assert_exact(idata["posterior"]["theta"], 300.0)
    told = idata["smc_stats"]
    # The evidence is a density of the observation with variance 1 + 1 + epsilon^2.
    np.testing.assert_allclose(told["log_evidence"], stats.norm(0, 1.5).logpdf(1.0), atol=0.2)
    assert told["epsilon_y"].dims == ("chain", "stage", "y_summary")
    widths = told["epsilon_y"].values[:, :, 0]
    assert (np.diff(widths[0][np.isfinite(widths[0])]) < 0).all()
    np.testing.assert_allclose(np.nanmin(widths, axis=1), 0.5)
    idata.to_netcdf(tmp_path / "saved.nc")


def test_a_vectorized_simulator_is_called_once_an_evaluation():
    sizes = []

    def simulator(rng, theta, size):
        """Data sets at once; one of a hundred fails."""
        sizes.append(size)
        data = rng.normal(theta, 1.0, size=size)
        data[rng.random(len(data)) < 0.01] = np.nan
        return data

    model = abc_model(simulator=simulator, vectorized=True)
    assert_exact(sample(model, pk.AdaptiveMetropolis, cores=1, draws=800, tune=300)["posterior"]["theta"])
    assert set(sizes) == {(5, 1)}
    drawn = pm.sample_prior_predictive(500, model=model, random_seed=1)["prior_predictive"]["y"]
    assert float(drawn.std()) == pytest.approx(np.sqrt(2.0), rel=0.15)
    assert sizes[-1] == (1, 1)
    simulated = pk.simulate(200, model=model, random_seed=1, progressbar=False)
    assert simulated["simulation_stats"].attrs["not_finite"] < 10
    forgetful = abc_model(simulator=lambda rng, theta, size: rng.normal(theta, 1.0, size[1:]), vectorized=True)
    with pytest.raises(ValueError, match="first dimension must be size"):
        sample(forgetful, pk.AdaptiveMetropolis, cores=1)


def long_model(prior_spread=10.0, **kwargs):
    """50 normal data with mean 2 and a wide prior: the posterior has mean 2.00 and a spread of 1 / sqrt(50)."""
    data = np.random.default_rng(1).normal(2.0, 1.0, 50)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, prior_spread)
        pk.KernelABC("y", normal_simulator, theta, observed=data + 2.0 - data.mean(), **kwargs)
    return model


@pytest.mark.long
def test_without_epsilon_the_posterior_is_nearly_that_of_the_summaries(tmp_path):
    model = long_model(summary=np.mean, num_pilot=1000)
    one = sample(model, pk.AdaptiveMetropolis, cores=1, draws=1500, tune=300)
    theta = one["posterior"]["theta"]
    effective, spread = float(az.ess(theta)), 1.0 / np.sqrt(50)
    assert effective > 200
    assert float(theta.mean()) == pytest.approx(2.0, abs=4 * spread / np.sqrt(effective))
    # The bandwidth of .3 spreads adds 4 %; it is known to 5 %.
    assert float(theta.std()) == pytest.approx(1.044 * spread, rel=4 / np.sqrt(2 * effective) + 0.02)
    # What was chosen and what it accepts stand in the result, and make the same model again.
    epsilon = one["constant_data"]["y_epsilon"]
    assert float(epsilon[0, 0]) ** 0.5 == pytest.approx(0.3 * spread, rel=0.15)
    # exp(-u^2 / (2 e^2)) of normal u with the variances of a simulation, of the posterior and, twice, of the kernel;
    # estimates that are accepted are larger by their relative variance, a sixth here.
    assert float(one["sample_stats"]["accepted_share_y"].mean()) == pytest.approx(7 / 6 * np.sqrt(0.09 / 2.18), rel=0.2)
    share, where = one["sample_stats"]["accepted_share_y"].values, theta.values
    np.testing.assert_array_equal((np.diff(share) == 0)[0], (np.diff(where) == 0)[0])
    again = long_model(summary=np.mean, epsilon=epsilon.values)
    point = {"theta": np.array(2.0)}
    assert float(again.compile_logp()(point)) == pytest.approx(float(model.compile_logp()(point)), abs=4.0)
    one.to_netcdf(tmp_path / "saved.nc")


def test_chains_begin_near_the_data_whatever_the_number_of_cores():
    model = long_model(summary=np.mean, prior_spread=1000.0, num_pilot=1000)
    one = sample(model, pk.KAMH, cores=1, draws=20, tune=20)
    assert same_draws(one, sample(model, pk.KAMH, cores=2, draws=20, tune=20))
    # The initial point, zero, is two, fourteen spreads, off.
    first = one["warmup_posterior"]["theta"].values[:, 0]
    assert (np.abs(first - 2.0) < 1.0).all()
    given = sample(model, pk.KAMH, cores=1, draws=5, tune=0, initvals={"theta": 30.0})
    assert (given["posterior"]["theta"].values[:, 0] > 20.0).all()


def _few_means(y):
    theta = pm.Normal("theta", 0, 3, shape=4)
    block = {"observed": y[:80].reshape(4, 20), "summary": lambda y: y.mean(axis=1), "num_simulations": 1}
    pk.KernelABC("y", lambda rng, theta, size: rng.normal(theta[:, None], 1.0, size), theta, **block)


def _apart(y):
    """Two copies of a number that differ, and noise that is small beside that."""
    observed = np.array([-50.0, 50.0])
    pk.KernelABC("y", normal_simulator, pm.Normal("theta", 0, 3), observed=observed, num_pilot=1000)


def _raw(y):
    mean, spread = pm.Normal("mean", 0, 5), pm.HalfNormal("spread", 5)
    simulator = lambda rng, mean, spread, size: rng.normal(mean, spread, size)  # noqa: E731
    pk.KernelABC("y", simulator, mean, spread, observed=1.0 + 2.0 * y[:30])


wide_bandwidth = pytest.mark.filterwarnings("ignore:the bandwidth of 'y' is")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_few_means, r"bandwidth of 'y' is .* times the spread.*num_simulations=1 allow no less"),
        pytest.param(_apart, r"summaries of 'y' are .* standard deviations from", marks=wide_bandwidth),
        (_raw, "the parameters change the spread of the summaries of 'y'"),
    ],
)
def test_a_bandwidth_that_is_wide_and_data_that_do_not_fit_are_said(build, message):
    with pm.Model(), pytest.warns(UserWarning, match=message):
        build(np.random.default_rng(1).normal(size=80))


def test_constrained_discrete_and_hierarchical_parameters_have_a_bandwidth():
    def simulator(rng, rate, count, size):
        return rng.poisson(rate + count, size).astype(float)

    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 5.0)
        rate = pm.Gamma("rate", mu=scale + 1.0, sigma=2.0, shape=2)
        count = pm.Poisson("count", 2.0)
        pm.Normal("unrelated")
        # With as few pilot simulations about half of all seeds give a bandwidth that is warned of.
        settings = {"num_pilot": 400, "random_seed": 1}
        pk.KernelABC("y", simulator, rate[:, None], count, observed=np.full((2, 30), 7.0), **settings)
    assert np.isfinite(model["y_epsilon"].get_value()).all()
    assert model["y_epsilon"].get_value().shape == (60, 60)


def test_synthetic_likelihood_of_normal_summaries_is_exact_and_these_are_not_spoken_of(caplog):
    """Mean of 20 observations, unbiased: the posterior is that of the exact likelihood, for 10 simulations."""
    data = np.random.default_rng(0).normal(0.7, 1.0, 20)
    model = abc_model(pk.SyntheticLikelihood, observed=data, summary=np.mean, num_simulations=10)
    draws = sample(model, pk.AdaptiveMetropolis, cores=1, draws=2000, tune=500)["posterior"]["theta"]
    assert_exact(draws, mean=20 * data.mean() / 21, spread=1.0 / np.sqrt(21.0))
    assert "taken for normal" not in caplog.text
    pk.sample_pmc(200, chains=1, iterations=5, model=model, random_seed=1, progressbar=False)  # warnings are errors


def test_a_simulator_that_fails_is_counted_and_said():
    def simulator(rng, theta, size):
        trouble = rng.random()
        if trouble < 0.1:
            raise RuntimeError("no convergence")
        return np.full(size, np.nan) if trouble < 0.3 else rng.normal(theta, 1.0, size=size)

    with pytest.warns(UserWarning, match=r"simulations of 'y' failed .*RuntimeError: no convergence"):
        idata = sample(abc_model(simulator=simulator), pk.AdaptiveMetropolis, cores=1, draws=1500, tune=500)
    assert_exact(idata["posterior"]["theta"])  # failures do not depend on the parameter


KERNEL_ABC, SYNTHETIC = pk.KernelABC, pk.SyntheticLikelihood
NEVER_RUNS = {"simulator": lambda rng, theta: rng.normal(theta), "epsilon": None}


@pytest.mark.parametrize(
    ("block", "settings", "error", "message"),
    [
        (KERNEL_ABC, {"epsilon": -1.0}, ValueError, "positive number"),
        (KERNEL_ABC, {"epsilon": [1.0, 2.0]}, ValueError, "one for each summary"),
        (KERNEL_ABC, {"epsilon": [[-1.0]]}, ValueError, "not positive definite"),
        (KERNEL_ABC, {"epsilon": None, "num_pilot": 100}, ValueError, "whole number >= 200"),
        (KERNEL_ABC, {"epsilon": None, "log_variance": 0.0}, ValueError, "must be positive"),
        (KERNEL_ABC, {"num_simulations": 0}, ValueError, "whole number"),
        (KERNEL_ABC, {"max_failures": 2.0}, ValueError, r"in \[0, 1\]"),
        (KERNEL_ABC, {"random": normal_simulator}, ValueError, "come from the simulator"),
        (KERNEL_ABC, {"epsilonn": 0.1}, TypeError, "block 'y'.* unexpected keyword argument 'epsilonn'.* takes .*dims"),
        (
            KERNEL_ABC,
            NEVER_RUNS,
            ValueError,
            r"repair the simulator \(it is called as simulator\(rng, .*TypeError: .*pos",
        ),
        (SYNTHETIC, {"num_simulations": 4}, ValueError, "needs more than 4"),
        (SYNTHETIC, {"shrinkage": 0.5}, ValueError, "cannot be shrunk"),
    ],
)
def test_mistakes_are_named(block, settings, error, message):
    with pytest.raises(error, match=message):
        abc_model(block, **settings)


@pytest.mark.parametrize(
    "prior", [pm.Flat, lambda name: pm.Censored(name, pm.Flat.dist(), lower=-1.0, upper=1.0)], ids=["flat", "inside"]
)
def test_a_prior_that_cannot_be_drawn_needs_a_bandwidth(prior):
    with pm.Model():
        theta = prior("theta")
        with pytest.raises(ValueError, match="'y' needs epsilon: a prior cannot be drawn from"):
            pk.KernelABC("y", normal_simulator, theta, observed=np.zeros(1))


CALLS = count()
SIZES = {
    "one less": ((50,), lambda rng, theta, size: rng.normal(theta, 1.0, size[0] - 1), r"\(49,\) where \(50,\) was"),
    "transposed": ((2, 50), lambda rng, theta, size: rng.normal(theta, 1.0, size[::-1]), r"\(50, 2\) where \(2, 50\)"),
    "a column": ((50,), lambda rng, theta, size: rng.normal(theta, 1.0, (50, 1)), None),
    "nothing": ((50,), lambda rng, theta, size: rng.normal(theta, 1.0, size) if next(CALLS) % 10 else None, None),
}


@pytest.mark.parametrize("name", SIZES)
def test_data_sets_of_another_size_are_said_once_and_failures_are_none(name, recwarn):
    shape, simulator, words = SIZES[name]
    with pm.Model():
        pk.KernelABC("y", simulator, pm.Normal("theta", 0, 10), observed=np.zeros(shape), summary=lambda y: y.mean())
    said = [str(w.message) for w in recwarn if "asked for" in str(w.message)]
    assert len(said) == (words is not None)
    assert all(re.search(f"simulator of 'y' returned .*{words}", one) for one in said)


def none_of_thirty():
    """Rare events: the normal approximation is .2 to .3 posterior standard deviations off."""
    events = lambda rng, theta, size: (rng.random(size) < 1.0 / (1.0 + np.exp(1.0 - theta))).astype(float)  # noqa: E731
    return abc_model(pk.SyntheticLikelihood, events, observed=np.zeros(30), summary=np.mean, vectorized=True)


def test_summaries_that_are_not_normal_where_the_posterior_is_are_said(caplog):
    sample(none_of_thirty(), pk.AdaptiveMetropolis, cores=1, draws=1000, tune=300)
    said = [r.getMessage() for r in caplog.records if "taken for normal" in r.getMessage()]
    assert said
    assert "mean of theta" in said[0]
    assert "above the true one" in said[0]


@pytest.mark.long
def test_samplers_say_it_once_and_so_does_the_report_of_any_draws(capsys, caplog):
    with none_of_thirty() as model:
        with pytest.warns(UserWarning, match=r"'y' are taken for normal.*the mean of theta is .* above the true one"):
            draws = pk.sample_pmc(300, chains=1, iterations=10, random_seed=1, progressbar=False)
        assert "taken for normal" not in caplog.text  # which holds what chains say for themselves
        assert pk.diagnose(draws, model=model, random_seed=1)
    assert "'y' are taken for normal" in capsys.readouterr().out
