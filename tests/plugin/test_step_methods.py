import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from pymc.blocking import DictToArrayBijection
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.step_methods import STEP_METHODS
from pytensor.compile.builders import OpFromGraph
from scipy import stats

import pymc_kernel as pk
from benchmarks import noisy_walks
from pymc_kernel.errors import NoisyBlockError, NonFiniteStartError
from pymc_kernel.mcmc.moves import NAMES
from pymc_kernel.plugin.blocks import likelihoods
from tests.plugin.models import STEPS, exact_model, noisy_model, noisy_normal, same_draws, sample

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small")


# -- the contract: same seed, same draws ------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "model",
    [pytest.param(exact_model, id="exact", marks=pytest.mark.machine_code), pytest.param(noisy_model, id="noisy")],
)
def test_same_draws_for_one_and_two_cores(name, model):
    sequential = sample(model(), STEPS[name], cores=1)
    parallel = sample(model(), STEPS[name], cores=2)
    assert same_draws(sequential, parallel)
    first, second = sequential["posterior"].isel(chain=0), sequential["posterior"].isel(chain=1)
    assert not any(np.array_equal(first[v], second[v]) for v in first.data_vars)
    assert not same_draws(sequential, sample(model(), STEPS[name], cores=1, seed=6))
    # Later chains adapt as the first one does.
    assert np.unique(sequential["warmup_sample_stats"]["proposal_scale"].isel(chain=1)).size > 60


@pytest.mark.parametrize(
    ("model", "method"),
    [
        pytest.param(exact_model, "forkserver", id="exact-forkserver", marks=pytest.mark.machine_code),
        pytest.param(noisy_model, "spawn", id="noisy-spawn"),
        pytest.param(exact_model, "spawn", id="exact-spawn", marks=pytest.mark.slow),
        pytest.param(noisy_model, "forkserver", id="noisy-forkserver", marks=pytest.mark.slow),
    ],
)
def test_same_draws_for_every_start_method(method, model):
    assert same_draws(sample(model(), pk.KAMH, cores=1), sample(model(), pk.KAMH, cores=2, mp_ctx=method))


@pytest.mark.parametrize("name", ["KAMH", "AdaptiveMetropolis", pytest.param("KernelHMC", marks=pytest.mark.slow)])
@pytest.mark.machine_code
def test_same_draws_in_a_compound_with_nuts_and_a_discrete_step(name):
    with pm.Model() as model:
        a = pm.Normal("a")
        b = pm.Normal("b", a, 1.0, shape=2)
        pm.Poisson("k", pm.math.exp(0.3 * a))
        pm.Normal("y", b, 1.0, observed=[0.5, 1.5])
    sequential = sample(model, lambda: STEPS[name]([b]), cores=1)
    assert same_draws(sequential, sample(model, lambda: STEPS[name]([b]), cores=2))
    # Another block moves in between, so the stored density is evaluated anew, and only then.
    evaluations = sequential["sample_stats"]["evaluations"].values
    # A surrogate move that ends where it began needs none.
    assert set(np.unique(evaluations)) <= ({0, 1, 2} if name == "KernelHMC" else {1, 2})
    assert (evaluations == 2).mean() > 0.3


def test_an_exact_density_is_evaluated_once_a_draw():
    stats_ = sample(exact_model(), pk.KAMH, cores=1)["sample_stats"]
    assert (stats_["evaluations"] == 1).all()


# -- right posteriors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["KAMH", pytest.param("AdaptiveMetropolis", marks=pytest.mark.slow), "KernelHMC"])
@pytest.mark.machine_code
def test_constrained_and_shaped_variables(name):
    # Draws of kernel HMC are nearly independent.
    length = {"draws": 2000, "tune": 1000} if name == "KernelHMC" else {"draws": 8000, "tune": 1500}
    idata = sample(exact_model(), STEPS[name], cores=1, **length)
    posterior = idata["posterior"]
    assert (posterior["sigma"] > 0).all()
    # Monte Carlo error at an effective size of 300 or more: five of them.
    assert float(posterior["sigma"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=5 * 0.6 / np.sqrt(300))
    assert float(posterior["z"].std()) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(600))
    np.testing.assert_allclose(posterior["x"].mean(("chain", "draw")), 1.0, atol=5 * 2 / np.sqrt(300))


def noisy_sd(step, draws, tune=1000):
    idata = sample(noisy_model(), step, cores=1, draws=draws, tune=tune, chains=4)
    return idata["posterior"]["theta"].values


@pytest.mark.parametrize("name", ["KAMH", pytest.param("AdaptiveMetropolis", marks=pytest.mark.slow), "KernelHMC"])
@pytest.mark.machine_code
def test_noisy_normal_has_its_exact_spread(name):
    theta = noisy_sd(STEPS[name], 3_000, tune=500) if name == "KernelHMC" else noisy_sd(STEPS[name], 5_000)
    error = float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method="sd"))
    assert error < 0.09
    assert abs(float(theta.std()) - 1.0) < 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.machine_code
def test_noisy_normal_has_its_exact_spread_to_two_per_cent(name):
    theta = noisy_sd(STEPS[name], 80_000)
    error = float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method="sd"))
    assert error < 0.02
    assert abs(float(theta.std()) - 1.0) < 3 * error


@pytest.mark.filterwarnings("ignore:Metropolis will sample a wrong posterior:UserWarning")
@pytest.mark.machine_code
def test_the_check_of_the_spread_sees_a_step_that_estimates_anew():
    """PyMC's Metropolis draws the estimate at the current point again: too wide by a third."""
    theta = noisy_sd(pm.Metropolis, 2_500)
    assert 1.2 < float(theta.std()) < 1.5


@pytest.mark.parametrize(
    ("noisy", "name"),
    # The noisy case is the harder one; the long tests have all six.
    [(True, "KAMH"), (True, "KernelHMC")],
)
@pytest.mark.machine_code
def test_simulation_based_calibration(noisy, name):
    """A hundred replications (fifty of kernel HMC) of a conjugate model: the rank of the truth is uniform."""
    # Kernel HMC spends most of its time on fits, and mixes in few draws.
    kernel = {"replications": 50, "num_tune": 120, "num_draws": 4, "thin": 15}
    settings = kernel if name == "KernelHMC" else {"replications": 100, "num_tune": 200, "num_draws": 9, "thin": 30}
    counts = np.bincount(calibration_ranks(STEPS[name], noisy, **settings), minlength=settings["num_draws"] + 1)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("noisy", [False, True], ids=["exact", "noisy"])
def test_simulation_based_calibration_with_1000_replications(name, noisy):
    short = {"num_tune": 120, "thin": 20} if name == "KernelHMC" else {}
    counts = np.bincount(calibration_ranks(STEPS[name], noisy, 1000, **short), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.machine_code
def test_calibration_sees_a_posterior_that_is_too_narrow():
    ranks = calibration_ranks(pk.AdaptiveMetropolis, False, 100, observation_sd=0.5, num_draws=9, num_tune=200, thin=15)
    assert stats.chisquare(np.bincount(ranks, minlength=10)).pvalue < 1e-3


def noisy_mean(rng, theta, sd, observed):
    return -0.5 * ((observed - theta) ** 2).sum() / sd**2 + rng.normal(-0.125, 0.5)


def calibration_ranks(make_step, noisy, replications, observation_sd=1.0, num_draws=19, thin=40, num_tune=300):
    rng = np.random.default_rng(77)
    with pm.Model() as model:
        theta = pm.Normal("theta")
        data = pm.Data("data", np.zeros(3))
        if noisy:
            pk.EstimatedLikelihood("y", noisy_mean, theta, np.float64(observation_sd), observed=data)
        else:
            pm.Normal("y", theta, observation_sd, observed=data)
        step = make_step()
    ranks = np.empty(replications, dtype=int)
    for r in range(replications):
        truth = rng.normal()
        with model:
            pm.set_data({"data": rng.normal(truth, 1.0, size=3)})
        step.setup_chain(np.random.default_rng([r, 1]), num_tune, num_draws * thin)
        point, draws = {"theta": np.asarray(0.0)}, []
        for t in range(num_tune + num_draws * thin):
            if t == num_tune:
                step.stop_tuning()
            point, _ = step.step(point)
            if t >= num_tune and (t - num_tune) % thin == thin - 1:
                draws.append(float(point["theta"]))
        ranks[r] = np.searchsorted(np.sort(draws), truth)
    return ranks


# -- state ----------------------------------------------------------------------------------------------


def advance(step, point, num_draws):
    points = []
    for _ in range(num_draws):
        point, _ = step.step(point)
        points.append({k: np.copy(v) for k, v in point.items()})
    return points


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("model", [exact_model, noisy_model], ids=["exact", "noisy"])
def test_an_interrupted_chain_goes_on_with_the_same_draws(name, model):
    model = model()
    with model:
        whole, first, second = STEPS[name](), STEPS[name](), STEPS[name]()
    start = model.initial_point()
    whole.setup_chain(np.random.default_rng(3), 400, 100)
    uninterrupted = advance(whole, start, 500)
    first.setup_chain(np.random.default_rng(3), 400, 100)
    begun = advance(first, start, 300)
    saved = pickle.loads(pickle.dumps(first.sampling_state))
    advance(first, begun[-1], 20)  # what happens afterwards to the first step must not matter
    second.sampling_state = saved
    resumed = begun + advance(second, begun[-1], 200)
    for one, other in zip(uninterrupted, resumed, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("model", [exact_model, noisy_model], ids=["exact", "noisy"])
def test_a_pickled_step_draws_the_same(name, model):
    model = model()
    with model:
        step = STEPS[name]()
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    start = model.initial_point()
    for s in (step, copy):
        s.setup_chain(np.random.default_rng(3), 200, 50)
    for one, other in zip(advance(step, start, 250), advance(copy, start, 250), strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_a_chain_may_be_moved_by_hand():
    model = exact_model()
    with model:
        step = pk.KAMH()
    step.setup_chain(np.random.default_rng(3), 300, 50)
    last = advance(step, model.initial_point(), 300)[-1]
    moved = {k: v + 0.1 for k, v in last.items()}
    _, [info] = step.step(moved)
    assert info["evaluations"] == 2


def test_interruption_returns_what_there_is():
    calls = []

    def interrupt(trace, draw):
        calls.append(1)
        if len(calls) == 350:
            raise KeyboardInterrupt

    with exact_model():
        idata = pm.sample(
            500,
            tune=300,
            chains=1,
            step=pk.KAMH(),
            progressbar=False,
            callback=interrupt,
            compute_convergence_checks=False,
            random_seed=1,
        )
    assert 0 < idata["posterior"].sizes["draw"] < 500


def test_adaptation_stops_with_tuning_or_vanishes():
    stopped = sample(exact_model(), pk.KAMH, cores=1)["sample_stats"]["proposal_scale"]
    assert np.unique(stopped.isel(chain=0)).size == 1
    going_on = sample(exact_model(), lambda: pk.KAMH(adaptation="vanishing"), cores=1)
    assert np.unique(going_on["sample_stats"]["proposal_scale"].isel(chain=0)).size == 60


def learned(state):
    """Everything that shapes a proposal."""
    walk = getattr(state, "walk", state)
    return pickle.dumps(
        (walk.mean, walk.factor, walk.log_scale, [getattr(state, a, None) for a in ("log_scale", "fit", "shares")])
    )


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_learned_after_tuning_unless_asked_for(name):
    model = exact_model()
    for adaptation in ("tuning",) if name == "KernelHMC" else ("tuning", "vanishing"):
        with model:
            step = STEPS[name]() if name == "KernelHMC" else STEPS[name](adaptation=adaptation)
        step.setup_chain(np.random.default_rng(3), 300, 300)
        last = advance(step, model.initial_point(), 300)[-1]
        step.stop_tuning()
        before = learned(step.transition)
        advance(step, last, 300)
        assert (learned(step.transition) == before) == (adaptation == "tuning")


# -- in PyMC's hands ------------------------------------------------------------------------------------


@pytest.mark.machine_code
def test_frozen_model_initvals_blocked_and_progress_bar(capsys):
    model = exact_model()
    # Freezing turns the order of the variables round, so the draws are others; the distribution is the same.
    frozen = sample(freeze_dims_and_data(model), pk.KAMH, cores=1, draws=6000, tune=1000)["posterior"]
    assert float(frozen["z"].mean()) == pytest.approx(-1.0, abs=5 * 0.5 / np.sqrt(300))
    assert float(frozen["x"].std()) == pytest.approx(2.0, abs=5 * 2.0 / np.sqrt(600))
    with pm.Model() as scalar:
        pm.Uniform("u", 0.0, 1.0)
        pm.Normal("v")
    apart = sample(scalar, lambda: pk.AdaptiveMetropolis(blocked=False), cores=1, initvals={"u": 0.9, "v": 3.0})
    assert apart["sample_stats"]["accept"].ndim == 3
    with exact_model():
        pm.sample(20, tune=20, chains=1, step=pk.KAMH(), compute_convergence_checks=False, random_seed=1)
    assert "Stuck" in capsys.readouterr().out


def test_float32():
    with pytensor.config.change_flags(floatX="float32"):
        idata = sample(exact_model(), pk.KAMH, cores=1)
    assert idata["posterior"]["z"].dtype == np.float32
    assert (idata["sample_stats"]["evaluations"] == 1).all()


def without_gradient():
    """A model with a black box of PyTensor's: exact, and not one of our blocks."""
    black_box = pytensor.compile.ops.wrap_py([pt.dscalar], [pt.dscalar])(lambda x: np.asarray(-0.5 * x**2))
    with pm.Model() as model:
        pm.Potential("p", black_box(pm.Normal("theta")))
    return model


def test_registration_for_models_without_gradient_is_opt_in():
    assert pk.KAMH not in STEP_METHODS
    before = list(STEP_METHODS)
    try:
        pk.register_step_methods()
        pk.register_step_methods()
        assert STEP_METHODS.count(pk.KAMH) == 1
        with without_gradient() as model:
            _, chosen = pm.sampling.mcmc.assign_step_methods(model, methods=STEP_METHODS)
            assert list(chosen) == [pk.KAMH]
        with noisy_model() as model:  # whether asked for or not
            _, chosen = pm.sampling.mcmc.assign_step_methods(model, methods=STEP_METHODS)
            assert list(chosen) == [pk.KernelHMC]
        with pm.Model() as model:
            pm.Normal("x")
            pm.Poisson("k", 1.0)
            _, chosen = pm.sampling.mcmc.assign_step_methods(model, methods=STEP_METHODS)
            assert pk.KAMH not in chosen
    finally:
        STEP_METHODS[:] = before


def test_named_variables_and_step_name():
    with exact_model() as model:
        step = pk.KAMH([model["z"], model["sigma"]])
    assert step.name == "kamh"
    assert set(step.var_names) == {"z", "sigma_log__"}


# -- what is refused, and how ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_a_noisy_density_in_parts_is_refused(name):
    with pm.Model():
        theta = pm.Normal("theta")
        phi = pm.Normal("phi")
        pk.EstimatedLikelihood("y", noisy_normal, theta + phi, observed=np.zeros(1))
        with pytest.raises(NoisyBlockError, match=r"\(by y\).*not given: phi"):
            STEPS[name]([theta])
        with pytest.raises(NoisyBlockError, match="not given: phi"):
            STEPS[name](blocked=False)


@pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Calling a RandomVariable without an explicit rng:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
def test_pymc_simulator_counts_as_noisy_and_is_reproducible():
    def simulate(rng, theta, size):
        return rng.normal(theta, 1.0, size=size)

    with pm.Model() as model:
        theta = pm.Normal("theta")
        phi = pm.Normal("phi")
        pm.Simulator("s", simulate, theta + phi, epsilon=1.0, observed=np.zeros(5))
        with pytest.raises(NoisyBlockError, match="not given: phi"):
            pk.KAMH([theta])
    sequential = sample(model, pk.AdaptiveMetropolis, cores=1)
    assert same_draws(sequential, sample(model, pk.AdaptiveMetropolis, cores=2))


@pytest.mark.parametrize("name", ["AdaptiveMetropolis", "KernelHMC"])
@pytest.mark.machine_code
def test_discrete_variables_are_left_to_other_steps(name):
    """k ~ Poisson(3), x ~ N(k, 1), y ~ N(x, 1) seen at 2: exact by summing k out."""
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        x = pm.Normal("x", k, 1.0)
        pm.Normal("y", x, 1.0, observed=2.0)
        step = STEPS[name]()
        with pytest.raises(TypeError, match="k is discrete"):
            STEPS[name]([x, k])
    assert [v.name for v in step.vars] == ["x"]
    idata = sample(model, STEPS[name], cores=1, draws=3000, tune=300)
    values = np.arange(40)
    weights = stats.poisson(3.0).pmf(values) * stats.norm(values, np.sqrt(2.0)).pdf(2.0)
    exact = (weights * (values + 2.0) / 2.0).sum() / weights.sum()
    assert float(idata["posterior"]["x"].mean()) == pytest.approx(exact, abs=0.15)
    assert (idata["posterior"]["k"] == idata["posterior"]["k"].round()).all()


def test_moves_are_named_and_survive_a_file(tmp_path):
    idata = sample(exact_model(), pk.KernelHMC, cores=1, draws=50, tune=150, chains=1)
    idata.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf") as again:
        moves = again["sample_stats"]["move"].values.astype(str)
    assert set(np.unique(moves)) <= set(NAMES)
    np.testing.assert_array_equal(moves, idata["sample_stats"]["move"].values)


def test_a_model_of_discrete_variables_alone_is_refused():
    with pm.Model():
        pm.Poisson("k", 3.0)
        with pytest.raises(ValueError, match="KAMH samples continuous variables"):
            pk.KAMH()


def test_too_little_tuning_is_said(caplog):
    for tune, said in ((0, True), (30, True), (300, False)):
        caplog.clear()
        sample(exact_model(), pk.KernelHMC, cores=1, draws=20, tune=tune, chains=1)
        assert (f"{tune} tuning draws were too few" in caplog.text) is said


def test_bad_settings_are_refused_before_any_work():
    with exact_model():
        with pytest.raises(ValueError, match="adaptation"):
            pk.KAMH(adaptation="never")
        with pytest.raises(ValueError, match="6 dimensions"):
            pk.AdaptiveMetropolis(covariance=np.eye(2))
        with pytest.raises(ValueError, match="6 dimensions"):
            pk.KAMH(kernel=pk.kernels.Gaussian([1.0, 2.0]))


def test_a_start_without_density_is_a_clear_error():
    with pm.Model() as model:
        pm.Normal("x")
        pm.Potential("never", pm.math.log(model["x"] * 0.0))
        step = pk.KAMH()
    step.setup_chain(np.random.default_rng(0), 10, 10)
    with pytest.raises(NonFiniteStartError, match="KAMH for x: the log density at the starting position"):
        step.step(model.initial_point())


def holes(rng, theta, observed):
    """Zero estimates, NaN and infinity turn up at random."""
    return [-np.inf, np.nan, np.inf, -0.5 * float(theta) ** 2][rng.integers(4)]


def test_zero_nan_and_infinite_estimates_reject():
    with pm.Model() as model:
        theta = pm.Flat("theta")
        pk.EstimatedLikelihood("y", holes, theta, observed=np.zeros(1))
        step = pk.AdaptiveMetropolis()
    step.setup_chain(np.random.default_rng(8), 200, 200)
    point = model.initial_point()
    step.density.seed(np.random.default_rng(0))
    while not np.isfinite(step.density(np.zeros(1))):
        pass
    step.transition = step._transition_module.init(np.zeros(1), 0.0, step.config)
    step.returned, step.surroundings = np.zeros(1).tobytes(), ()
    for _ in range(400):
        point, [info] = step.step(point)
        assert np.isfinite(info["log_density"])
    assert info["proposal_scale"] > 0


def test_a_stuck_chain_is_reported_with_the_noise_of_the_estimate(caplog):
    def very_noisy(rng, theta, observed):
        return noisy_normal(rng, theta, observed, sd=6.0)

    with pm.Model() as model:
        theta = pm.Flat("theta", initval=0.1)
        pk.EstimatedLikelihood("y", very_noisy, theta, observed=np.zeros(1))
    idata = sample(model, pk.AdaptiveMetropolis, cores=2, draws=1000, chains=2)
    assert int(idata["sample_stats"]["stuck_for"].max()) >= 200
    [message, *_] = [r.message for r in caplog.records if "rejected 200" in r.message]
    assert "variance of" in message
    assert "times as many replicates" in message
    # Looking at the noise is counted, and happens once a chain.
    extra = (idata["sample_stats"]["evaluations"] - 1).sum("draw").values
    assert set(extra) <= {0, 20}


def noisy_pair(rng, theta, observed):
    """Log of an unbiased estimate of exp(-|theta|^2 / 2); the log-normal noise lets .23 of all steps through."""
    return float(-0.5 * theta @ theta - 0.5 * 1.7**2 + 1.7 * rng.standard_normal())


def two_noisy_parameters():
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2, initval=np.zeros(2))
        pk.EstimatedLikelihood("y", noisy_pair, theta, observed=np.zeros(1))
    return model


@pytest.mark.parametrize("name", ["KAMH", "AdaptiveMetropolis"])
def test_noise_is_measured_while_tuning_and_scales_do_not_collapse(name):
    idata = sample(two_noisy_parameters(), STEPS[name], cores=1, tune=800, draws=200, chains=3)
    tuning, drawing = idata["warmup_sample_stats"]["evaluations"], idata["sample_stats"]["evaluations"]
    # The very first draw has one evaluation more, at the start.
    np.testing.assert_array_equal(tuning.sum("draw"), 800 + 80 + 1)
    assert set(np.unique(drawing)) <= {1, 21}  # 21: a stuck chain looks at the noise
    scales = idata["sample_stats"]["proposal_scale"].values[:, -1] / (2.38 / np.sqrt(2))
    assert scales.min() > 0.5
    assert scales.max() < 4.0


def test_numbers_used_again_leave_a_higher_ceiling():
    """What counts is the noise of the acceptance ratio, not that of the estimate."""
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2, initval=np.zeros(2))
        pk.EstimatedLikelihood("y", noisy_pair, theta, observed=np.zeros(1), reuse_noise=0.9)
        step = pk.AdaptiveMetropolis()
    step.setup_chain(np.random.default_rng(1), 400, 0)
    advance(step, model.initial_point(), 400)
    assert step.transition.noise.num_probes == 40
    # Nine in ten probes are the estimate that the chain holds, one in ten is accepted with .23.
    assert step.transition.noise.ceiling == pytest.approx(0.92, abs=0.1)


def test_a_target_that_noise_puts_out_of_reach_is_reported(caplog):
    sample(two_noisy_parameters(), lambda: pk.AdaptiveMetropolis(target_accept=0.234), cores=1, tune=400, chains=1)
    [message] = [r.message for r in caplog.records if "cannot be reached" in r.message]
    assert 'Leave target_accept at "auto"' in message
    assert "variance of" in message


@pytest.mark.parametrize("name", ["KAMH", "AdaptiveMetropolis"])
def test_a_scale_at_its_floor_is_reported(name, caplog):
    model = two_noisy_parameters()
    with model:
        step = STEPS[name]()
    step.setup_chain(np.random.default_rng(1), 300, 10)
    advance(step, model.initial_point(), 300)
    step.stop_tuning()
    floor = np.log(step.config.smallest_scale(2))
    step.transition = step.transition._replace(log_scale=floor, rejections=0)
    point = {"theta": step.transition.position}
    _, [statistics] = step.step(point)
    assert "floor" in statistics["warning"].message


@pytest.mark.parametrize("num_draws", [100, 1000])
def test_a_chain_that_hardly_moved_says_so_at_its_end(num_draws):
    model = two_noisy_parameters()
    with model:
        step = pk.AdaptiveMetropolis()
    step.setup_chain(np.random.default_rng(1), 300, num_draws)
    point = advance(step, model.initial_point(), 300)[-1]
    step.stop_tuning()
    said = []
    for _ in range(num_draws):
        before = point["theta"]
        point, [statistics] = step.step(point)
        said.append((statistics["warning"], not np.array_equal(before, point["theta"])))
    warnings, moved = zip(*said, strict=True)
    assert step.moves == sum(moved)
    assert not any(warnings[:-1])
    assert (sum(moved) < 24) == (num_draws == 100) == (warnings[-1] is not None)
    if num_draws == 100:
        assert f"moved {sum(moved)} times in 100 draws" in warnings[-1].message


@pytest.mark.slow
@pytest.mark.parametrize("way", noisy_walks.WAYS)
@pytest.mark.parametrize("name", noisy_walks.STEPS)
def test_no_walk_under_noise_is_narrow_in_silence(name, way):
    """A part of the table of ``benchmarks.noisy_walks``."""
    for sigma, num_dims in ((1.5, 5), (1.7, 1), (1.7, 2)):
        chains = noisy_walks.WAYS[way](name, sigma, num_dims, 32, 2)
        assert noisy_walks.counted(chains).silent == 0


def test_the_check_of_narrow_walks_sees_a_target_above_what_noise_allows():
    chains = noisy_walks.on_arrays("AdaptiveMetropolis", 1.7, 2, 12, 1, 0.234)
    assert noisy_walks.counted(chains).narrow >= 1


def test_a_stuck_chain_with_an_exact_density_is_reported(caplog):
    with pm.Model() as model:
        pm.Normal("x")
    sample(model, lambda: pk.AdaptiveMetropolis(scale=1e4, learn_scale=False), cores=1, draws=800, chains=1)
    assert any("do not fit" in r.message for r in caplog.records)


def test_points_in_shared_memory_are_not_kept():
    model = exact_model()
    with model:
        step = pk.AdaptiveMetropolis()
    step.setup_chain(np.random.default_rng(1), 50, 50)
    point = model.initial_point()
    q = DictToArrayBijection.map({v: point[v] for v in step.var_names})
    new, _ = step.step(point)
    kept = step.transition.position.copy()
    for value in new.values():
        value[...] = 99.0
    q.data[:] = 99.0
    np.testing.assert_array_equal(step.transition.position, kept)


@pytest.mark.parametrize("name", STEPS)
def test_one_buffer_for_all_points_gives_the_same_draws(name):
    """PyMC's worker processes write every point into the same shared memory."""
    model = exact_model()
    with model:
        step = STEPS[name]()
    start = model.initial_point()
    step.setup_chain(np.random.default_rng(3), 300, 100)
    expected = advance(step, start, 400)
    step.setup_chain(np.random.default_rng(3), 300, 100)
    shared = {k: np.array(v) for k, v in start.items()}
    for wanted in expected:
        new, _ = step.step(dict(shared))
        for key, value in new.items():
            shared[key][...] = value
            np.testing.assert_array_equal(shared[key], wanted[key])


def test_a_second_step_on_a_noisy_block_is_refused():
    """Each alone is right; together neither knows which estimate was accepted last."""
    model = noisy_model()
    with model:
        one, other = pk.AdaptiveMetropolis(), pk.AdaptiveMetropolis()
    point = model.initial_point()
    for step in (one, other):
        step.setup_chain(np.random.default_rng(1), 100, 0)

    def take_turns(point):
        for _ in range(100):
            point, _ = one.step(point)
            point, _ = other.step(point)

    with pytest.raises(NoisyBlockError, match="AdaptiveMetropolis for theta: another step moved the chain"):
        take_turns(point)


def test_minibatches_are_refused():
    with pm.Model():
        theta = pm.Normal("theta")
        batch = pm.Minibatch(np.arange(100.0), batch_size=10)
        pm.Normal("y", theta, observed=batch, total_size=100)
        with pytest.raises(ValueError, match="Minibatch does"):
            pk.KAMH()


def test_an_estimate_inside_a_nested_graph_is_found():
    with pm.Model():
        theta = pm.Normal("theta")
        phi = pm.Normal("phi")
        op = likelihoods.EstimatedLogLikelihoodOp("inner", noisy_normal)
        value = pt.dscalar()
        nested = OpFromGraph([value], [op(value, pt.zeros(1))])
        pm.Potential("p", nested(theta + phi))
        with pytest.raises(NoisyBlockError, match="by inner"):
            pk.KAMH([theta])


def test_a_compound_whose_steps_see_different_densities_is_named():
    model = exact_model()
    with model:
        step = pk.KAMH([model["z"]])
    step.setup_chain(np.random.default_rng(3), 10, 10)
    [point] = advance(step, model.initial_point(), 1)
    point["x"] = np.full((2, 2), np.nan)
    with pytest.raises(NonFiniteStartError, match="KAMH for z: after another step moved the chain"):
        step.step(point)


def test_variables_without_entries_are_named():
    with pm.Model():
        pm.Normal("none", shape=0)
        with pytest.raises(ValueError, match="without entries: none"):
            pk.KAMH()


@pytest.mark.parametrize("tune", [0, 1, 5, 12, 30])
@pytest.mark.parametrize("adaptation", ["tuning", "vanishing"])
def test_short_tuning_learns_no_shape_from_a_handful_of_points(tune, adaptation):
    model = exact_model()
    with model:
        step = pk.KAMH(adaptation=adaptation)
    step.setup_chain(np.random.default_rng(3), tune, 30)
    advance(step, model.initial_point(), 30)
    assert step.transition.fit is None


def test_kernel_hmc_ends_its_learning_when_it_is_told_to():
    """A loop that counts evaluations may stop tuning a draw early: no survey moves are left after that."""
    model = exact_model()
    with model:
        step = pk.KernelHMC()
    step.setup_chain(np.random.default_rng(3), 400, 30)
    point = advance(step, model.initial_point(), 390)[-1]
    assert step.transition.choice.shares[-1] > 0.0
    step.stop_tuning()
    assert step.transition.choice.shares[-1] == 0.0
    shares = step.transition.choice.shares
    advance(step, point, 20)
    assert step.transition.choice.shares is shares
