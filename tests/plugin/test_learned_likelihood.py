"""The block of a learned likelihood: graphs, gradients, groups, predictive draws."""

from functools import cache

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_kernel as pk
from pymc_kernel.plugin.blocks.learned import LearnedLogLikelihoodOp
from tests.plugin.parts import QUIET, check_moments
from tests.reference.differences import assert_derivative

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


def test_density_and_gradient_are_those_of_what_was_learned(learned):
    observed, place = np.array([0.4, -0.2]), np.array([0.3, 0.1])
    model, point = one_group(learned, observed), {"theta": place}
    expected = stats.norm.logpdf(place).sum() + of_all_rows(learned, place[None], observed)
    assert float(model.compile_logp()(point)) == pytest.approx(expected)
    found = [learned.replicate(k).log_density_and_gradient(place[None], observed) for k in range(8)]
    shares = np.exp([density[0] for density, _ in found])
    np.testing.assert_allclose(model.compile_dlogp()(point), shares @ [s[0] for _, s in found] / shares.sum() - place)


def test_density_and_gradient_are_evaluated_in_one_pass(learned):
    model = one_group(learned, np.array([0.2, 0.3]))
    both, one = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function, model.compile_logp(point_fn=False)
    for function, with_gradient in ((both, True), (one, False)):
        ops = [node.op for node in function.maker.fgraph.toposort()]
        assert [op.with_gradient for op in ops if isinstance(op, LearnedLogLikelihoodOp)] == [with_gradient]


def test_gradient_by_finite_differences_in_a_hierarchy(learned, groups):
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 1.0, shape=2)
        effect = pm.Normal("effect", 0.0, 1.0, shape=(4, 2))
        pk.LearnedLikelihood("y", learned, mean + 0.5 * effect, observed=groups)
    function = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function
    place = np.array([0.2, 0.4, *np.random.default_rng(3).normal(size=8)])
    assert_derivative(function(place)[1], lambda x: function(x)[0], place, rtol=1e-5, atol=1e-6)


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
    def simulator(rng, level, slope, size):
        return np.full(size, 7.0) + 0.0 * level

    with pm.Model():
        parts = [pm.Normal(name, 0.0, 1.0) for name in ("level", "slope")]
        pk.LearnedLikelihood("y", learned, *parts, observed=[0.1, 0.2], random=simulator)
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


def posterior_of(model, num_draws=400):
    """Draws of the learned posterior on a grid, of a model with one parameter."""
    rng, grid, logp = np.random.default_rng(1), np.linspace(-3.0, 12.0, 3000), model.compile_logp()
    values = np.array([logp({"theta": x}) for x in grid])
    chance = np.exp(values - values.max())
    draws = rng.choice(grid, (2, num_draws), p=chance / chance.sum())
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
