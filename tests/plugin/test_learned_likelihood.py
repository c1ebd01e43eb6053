"""Likelihoods that are learned: the block with its graphs, gradients and groups, and posteriors by rounds."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import ImputationWarning
from scipy import stats
from scipy.special import logsumexp, softmax

import pymc_kernel as pk
from pymc_kernel.plugin.blocks.learned import LearnedLogLikelihoodOp
from pymc_kernel.plugin.simulation import likelihood_free, trust
from pymc_kernel.plugin.warn import findings_in
from pymc_kernel.rounds import Calibration, Checks
from tests.plugin.models import Ends
from tests.plugin.parts import QUIET, check_moments, data_around
from tests.reference.differences import assert_derivative
from tests.reference.grids import moments

SPREAD = np.array([0.5, 0.8])


def simulate(rng, level, slope, size=None):
    """Return two summaries: a level, and a slope that leans on the level."""
    mean = np.stack(np.broadcast_arrays(level, slope + 0.3 * level), axis=-1)
    return mean + SPREAD * rng.standard_normal(mean.shape if size is None else size)


def fit(seed, scale, shape, simulations):
    """A likelihood that is learned from normal parameters and what ``simulations(rng, parameters)`` returns."""
    rng = np.random.default_rng(seed)
    parameters = rng.normal(0.0, scale, shape)
    return pk.likelihood_free.LearnedLikelihood().fit(parameters, simulations(rng, parameters), rng)


@pytest.fixture(scope="module")
def learned():
    return fit(1, 2.0, (600, 2), lambda rng, parameters: simulate(rng, *parameters.T))


@pytest.fixture(scope="module")
def groups():
    rng = np.random.default_rng(2)
    return simulate(rng, *rng.normal(0.5, 0.7, (2, 4)))


def of_all_rows(learned, places, rows):
    """Log of the mean, over densities that the simulations allow, of the density of all rows together."""
    totals = [learned.replicate(k).log_density(places, rows).sum() for k in range(learned.num_replicates)]
    return logsumexp(totals) - np.log(len(totals))


def one_group(learned, observed):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pk.LearnedLikelihood("y", learned, theta, observed=observed)
    return model


def test_gradient_by_finite_differences_in_a_hierarchy_and_of_one_group(learned, groups):
    """It is evaluated with the density in one pass, and the density alone without it."""
    with pm.Model() as hierarchy:
        mean = pm.Normal("mean", 0.0, 1.0, shape=2)
        effect = pm.Normal("effect", 0.0, 1.0, shape=(4, 2))
        pk.LearnedLikelihood("y", learned, mean + 0.5 * effect, observed=groups)
    for model, num_dims in ((hierarchy, 10), (one_group(learned, np.array([0.4, -0.2])), 2)):
        both, alone = model.logp_dlogp_function(ravel_inputs=True), model.compile_logp(point_fn=False)
        both = both._pytensor_function
        place = 0.5 * np.random.default_rng(3).normal(size=num_dims)
        assert_derivative(both(place)[1], lambda x, f=both: f(x)[0], place, rtol=1e-5, atol=1e-6)
        for function, with_gradient in ((both, True), (alone, False)):
            ops = [node.op for node in function.maker.fgraph.toposort()]
            assert [op.with_gradient for op in ops if isinstance(op, LearnedLogLikelihoodOp)] == [with_gradient]


def test_parameters_in_parts_or_together_and_one_for_all_groups(learned, groups):
    def value(*params):
        with pm.Model() as model:
            level = pm.Normal("level", 0.0, 1.0, shape=4)
            slope = pm.Normal("slope", 0.0, 1.0)
            pk.LearnedLikelihood("y", learned, *[p(level, slope) for p in params], observed=groups)
        return model.compile_logp()({"level": np.arange(4.0) / 4.0, "slope": np.array(0.3)})

    parts = value(lambda level, slope: level, lambda level, slope: slope)
    together = value(lambda level, slope: pt.stack([level, pt.broadcast_to(slope, (4,))], axis=-1))
    assert parts == pytest.approx(together)
    rows = np.column_stack([np.arange(4.0) / 4.0, np.full(4, 0.3)])
    prior = stats.norm.logpdf(rows[:, 0]).sum() + stats.norm.logpdf(0.3)
    assert parts == pytest.approx(prior + of_all_rows(learned, rows, groups))
    expected = of_all_rows(learned, np.full((4, 2), 0.3), groups) + 2.0 * stats.norm.logpdf(0.3)
    assert one_group(learned, groups).compile_logp()({"theta": np.full(2, 0.3)}) == pytest.approx(expected)


def test_one_parameter_and_one_summary():
    learned = fit(4, 2.0, (400, 1), lambda rng, theta: theta + 0.5 * rng.standard_normal((400, 1)))
    for shape in ((), (1,), (3,)):
        observed = np.full((*shape, 1) if shape == (3,) else (1,), 0.3)
        with pm.Model() as model:
            x = pm.Normal("x", 0.0, 1.0, shape=shape)
            pk.LearnedLikelihood("y", learned, x, observed=observed)
        rows = np.full((max(1, *shape, 1), 1), 0.2)
        expected = of_all_rows(learned, rows, observed.reshape(-1, 1)) + len(rows) * stats.norm.logpdf(0.2)
        assert model.compile_logp()({"x": np.full(shape, 0.2)}) == pytest.approx(expected)


def test_impossible_rows_leave_the_others_alone():
    learned = fit(6, 1.0, (400, 1), lambda rng, theta: np.exp(theta + rng.standard_normal((400, 1))))
    found = learned.given([[1.0], [-1.0]]).averaged(np.zeros((2, 1)), True)
    assert found.rows[1] == -np.inf
    assert np.isfinite(found.slopes).all()
    assert np.isfinite(found.joint_slopes).all()


def test_predictive_draws_log_likelihoods_and_dimensions(learned, groups):
    with pm.Model(coords={"group": list("abcd"), "summary": ["level", "slope"]}):
        theta = pm.Normal("theta", 0.5, 0.7, dims=("group", "summary"))
        pk.LearnedLikelihood("y", learned, theta, observed=groups, dims=("group", "summary"))
        drawn = pm.sample_prior_predictive(500, random_seed=1)
        theta, predicted = drawn["prior"]["theta"].values, drawn["prior_predictive"]["y"]
        idata = az.from_dict({"posterior": {"theta": theta}}, dims={"theta": ["group", "summary"]})
        log_likelihood = pm.compute_log_likelihood(idata, progressbar=False)["log_likelihood"]["y"]
    assert predicted.dims == ("chain", "draw", "group", "summary")
    assert log_likelihood.shape == (1, 500, 4)
    sd = np.hypot(0.7, SPREAD[0])
    check_moments(predicted[..., 0], 0.5, sd, 0.1 / sd, 0.1)
    rows = learned.log_density(theta[0, 7], groups)  # what averaging changes of the sum is shared by all rows
    shared = (of_all_rows(learned, theta[0, 7], groups) - rows.sum()) / 4
    np.testing.assert_allclose(log_likelihood.values[0, 7], rows + shared)


def test_predictive_draws_by_the_simulator(learned):
    sevens = lambda rng, level, slope, size: np.full(size, 7.0) + 0.0 * level  # noqa: E731
    with pm.Model():
        parts = [pm.Normal(name, 0.0, 1.0) for name in ("level", "slope")]
        pk.LearnedLikelihood("y", learned, *parts, observed=[0.1, 0.2], random=sevens)
        drawn = pm.sample_prior_predictive(5, random_seed=1)
    assert (drawn["prior_predictive"]["y"] == 7.0).all()


def test_data_can_be_set_and_the_model_sent(learned):
    with pm.Model() as model:
        data = pm.Data("data", np.array([0.4, -0.2]))
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pk.LearnedLikelihood("y", learned, theta, observed=data)
    point = {"theta": np.array([0.1, 0.2])}
    again = cloudpickle.loads(cloudpickle.dumps(model))
    compiled = model.compile_logp()
    assert again.compile_logp()(point) == pytest.approx(compiled(point))
    model.set_data("data", np.array([1.4, 0.9]))
    expected = of_all_rows(learned, point["theta"][None], [1.4, 0.9]) + stats.norm.logpdf(point["theta"]).sum()
    assert compiled(point) == pytest.approx(expected)  # not by the transforms of the data before


def test_far_away_the_density_is_no_error_and_particles_find_what_is_near(learned):
    model = one_group(learned, np.array([0.4, -0.2]))
    logp = model.compile_logp()
    for value in (1e8, np.inf, np.nan):
        assert not logp({"theta": np.array([value, 0.0])}) > -1e3
    idata = pk.sample_smc(200, chains=1, compute_convergence_checks=False, model=model, **QUIET)
    draws = idata["posterior"]["theta"].values
    assert np.isfinite(draws).all()
    assert draws[..., 0].mean() == pytest.approx(0.3, abs=0.2)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"learned": pk.likelihood_free.LearnedLikelihood()}, TypeError, r"fitted one.*fit\(parameters, summaries\)"),
        ({"params": [np.zeros(3)]}, ValueError, "learned with 2 parameters"),
        ({"params": []}, ValueError, "learned with 2 parameters.*none"),
        ({"params": [0.0, 0.0, 0.0]}, ValueError, "learned with 2 parameters"),
        ({"observed": [0.1, 0.2, 0.3]}, ValueError, "2 summaries in its last dimension"),
        ({"observed": 0.1}, ValueError, "2 summaries in its last dimension"),
        ({"observed": [0.1, np.nan]}, ValueError, "missing entries"),
    ],
)
def test_what_does_not_fit_is_named(learned, change, error, match):
    settings = {"learned": learned, "params": [np.zeros(2)], "observed": [0.1, 0.2], **change}
    with pm.Model(), pytest.raises(error, match=match):
        pk.LearnedLikelihood("y", settings["learned"], *settings["params"], observed=settings["observed"])


def waits(rng, log_mean):
    return np.exp(log_mean) * rng.exponential(size=np.shape(log_mean))


@cache
def learned_waits():
    return fit(1, 1.0, (400, 1), waits)


def posterior_of(model):
    """Draws of the learned posterior on a grid, of a model with one parameter."""
    rng, grid, logp = np.random.default_rng(1), np.linspace(-3.0, 12.0, 3000), model.compile_logp()
    draws = rng.choice(grid, (2, 400), p=softmax([logp({"theta": x}) for x in grid]))
    return draws + rng.uniform(-0.0025, 0.0025, draws.shape)


def shared_waits(learned, observed):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 5.0)
        pk.LearnedLikelihood("y", learned, theta, observed=np.reshape(observed, (-1, 1)))
    return model


def test_rows_that_no_simulation_is_like_are_said_at_once():
    learned, rng = learned_waits(), np.random.default_rng(2)
    shared_waits(learned, waits(rng, rng.standard_normal(100)))  # silent: warnings are errors
    with pytest.warns(UserWarning, match=r"1 of the 1 rows of 'y' are data as fewer than 1 %"):
        shared_waits(learned, [3000.0])
    with pytest.warns(UserWarning, match=r"4 of the 20 rows of 'y'.* such as \["):
        shared_waits(learned, [*waits(rng, np.zeros(17)), 2500.0, 3000.0, 3500.0])


def diagnosed(draws, model):
    posterior = az.from_dict({"posterior": {"theta": draws}})
    has_errors, found = pk.diagnose(posterior, model=model, return_diagnostics=True)
    return has_errors, found["learned"][0]


@pytest.mark.slow
def test_errors_of_rows_that_share_a_parameter_add_up(capsys):
    """400 simulations of one wait each know what one says, and do not know what 150 say together."""
    learned, rng = learned_waits(), np.random.default_rng(3)
    errors = []
    for observed, is_known in (([1.3], True), (waits(rng, np.full(150, 0.3)), False)):
        model = shared_waits(learned, observed)
        has_errors, found = diagnosed(posterior_of(model), model)
        errors.append(found.errors["theta"][0])
        assert has_errors == (not is_known)
    assert errors[0] < 0.15
    assert errors[1] > 0.5
    said = capsys.readouterr().out
    for error in errors:
        assert f"posterior means are known to {error:.2f} posterior standard deviations (theta, the" in said
    assert said.count(f"leave the posterior mean of theta open by {errors[1]:.2f} posterior") == 1


def test_draws_where_nothing_was_simulated_are_said(capsys):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pk.LearnedLikelihood("y", learned_waits(), theta[:, None], observed=[[1.0], [2.0]])
    has_errors, found = diagnosed(np.random.default_rng(1).normal([0.0, 9.0], 0.5, (2, 200, 2)), model)
    assert has_errors
    np.testing.assert_allclose(found.outside, [0.0, 1.0], atol=0.02)
    assert "100 % of the draws of the parameters of row 1 of y lie where" in capsys.readouterr().out


# -- posteriors by a likelihood that is learned in rounds of simulations of a model -----------------

FOUR = QUIET | {"chains": 4}
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


def run(simulate=simulator, *, data=1.0, **settings):
    return pk.sample_likelihood_free(model=conjugate_model(data, simulate), **settings)


def test_posterior_likelihood_groups_and_statistics_of_a_conjugate_model():
    idata, likelihood = run(num_simulations=600, return_fitted=True, **FOUR)
    variance = 1.0 / (1.0 + NOISE**-2)
    exact = stats.norm(variance / NOISE**2, np.sqrt(variance))
    draws = idata["posterior"]["theta"].values
    assert draws.shape == (4, 1000)
    check_moments(draws, exact.mean(), exact.std(), 0.12, 0.12)
    assert np.quantile(draws, [0.05, 0.95]) == pytest.approx(exact.ppf([0.05, 0.95]), abs=0.25 * exact.std())
    evidence = stats.norm(0.0, np.hypot(1.0, NOISE)).logpdf(1.0)
    np.testing.assert_allclose(idata["sample_stats"]["log_evidence"], evidence, atol=0.3)
    assert 0.0 < float(idata["sample_stats"]["learning_error"]) < 0.2
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


@pytest.mark.slow
def test_simulations_far_out_in_cauchy_priors_do_not_mislead():
    values = np.random.default_rng(1).normal(2.0, 3.0, 20)

    def summaries(values):
        return np.array([values.mean(), np.log(values.std())])

    with pm.Model() as model:
        location, scale = pm.Cauchy("location", 0.0, 5.0), pm.HalfCauchy("scale", 5.0)
        args = location, scale
        pm.Simulator("s", lambda rng, m, s, size: summaries(rng.normal(m, s, 20)), *args, observed=summaries(values))
    found = pk.sample_likelihood_free(model=model, **QUIET).posterior

    m, s = np.meshgrid(np.linspace(-5.0, 10.0, 1501), np.linspace(0.5, 8.0, 751), indexing="ij")
    log_density = stats.cauchy.logpdf(m, 0, 5) + stats.cauchy.logpdf(s, 0, 5)
    log_density += stats.norm.logpdf(values[:, None, None], m, s).sum(axis=0)
    for name, grid, other in (("location", m[:, 0], 1), ("scale", s[0], 0)):
        margin = logsumexp(log_density, axis=other)
        below, spread = np.exp(margin - logsumexp(margin)).cumsum(), moments(grid, margin)[1]
        exact = grid[np.searchsorted(below, [0.05, 0.5, 0.95])]
        np.testing.assert_allclose(np.quantile(found[name], [0.05, 0.5, 0.95]), exact, rtol=0, atol=0.25 * spread)


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


@pytest.mark.parametrize(("shift", "is_said"), [(0.3, False), (0.45, True)])
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
        ({"estimator": pk.likelihood_free.LearnedLikelihood}, TypeError, r"must be LearnedLikelihood\(\).* got <class"),
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
        idata = pk.sample_likelihood_free(300, rounds=1, **FOUR)
        _, found = pk.diagnose(idata, return_diagnostics=True)
    shown, draws = capsys.readouterr().out, idata["posterior"]["mean"].values
    assert "the log density of this model is not known" in shown
    for i in range(2):
        error = draws[..., i].mean(axis=1).std(ddof=1) / draws[..., i].std()
        assert f"mean[{i}] {error:.2f}" in shown
    assert "ksd" not in found
