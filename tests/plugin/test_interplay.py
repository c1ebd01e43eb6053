"""What PyMC lets a user do with a model and a run, it lets them do with ours: PyMC's own samplers are the twins."""

from functools import cache
from itertools import count

import arviz as az
import numpy as np
import pymc as pm
import pytest
from pymc.sampling.mcmc import assign_step_methods

import pymc_kernel as pk
from tests.plugin.models import Ends
from tests.plugin.parts import PLAIN, QUIET

pytestmark = [
    pytest.mark.filterwarnings("ignore:The effect of Potentials"),
    # Runs here are as short as can be; what they say of themselves is not the matter.
    pytest.mark.filterwarnings("ignore:.*should not be trusted"),
    pytest.mark.filterwarnings("ignore:The weights have a Pareto shape"),
    pytest.mark.filterwarnings("ignore:At one stage"),
    pytest.mark.filterwarnings("ignore:Populations of particles"),
]

SAMPLERS = {
    "KernelHMC": lambda **k: pm.sample(40, tune=120, step=pk.KernelHMC(), **(PLAIN | k)),
    "sample_khmc": lambda **k: pk.sample_khmc(40, tune=60, **(PLAIN | k)),
    "sample_smc": lambda **k: pk.sample_smc(60, pk.ASMC, **(PLAIN | k)),
    "sample_pmc": lambda **k: pk.sample_pmc(40, iterations=3, **(QUIET | k)),
    "sample_kbr": lambda **k: pk.sample_kbr(draws=40, chains=2, num_simulations=200, **(QUIET | k)),
    "sample_abc": lambda **k: pk.sample_abc(draws=40, chains=2, num_simulations=300, **(QUIET | k)),
}

LOGS = np.array([0.5, 2.5, 1.0])


def log_estimate(rng, mean, observed):
    return -0.5 * ((observed - mean) ** 2).sum() + rng.normal(-0.02, 0.2)


def line(block=None):
    """A line through data that may be exchanged, with coordinates and a quantity derived from it."""
    with pm.Model(coords={"place": ["a", "b", "c"]}) as model:
        x, y = pm.Data("x", np.arange(3.0), dims="place"), pm.Data("y_data", LOGS, dims="place")
        slope, level = pm.Normal("slope", 0.0, 2.0), pm.Normal("level", 0.0, 2.0)
        spread = pm.HalfNormal("spread", 1.0)
        mean = pm.Deterministic("mean", level + slope * x, dims="place")
        if block is None:
            pm.Normal("y", mean, spread, observed=y, dims="place")
        else:
            block("y", log_estimate, mean, observed=y, dims="place")
    return model


def changed(model):
    """Return a copy in which one variable is set, one observed, and data of another length are put in place."""
    model = pm.observe(pm.do(model.copy(), {"level": 1.0}), {"spread": 0.7})
    with model:
        pm.set_data({"x": np.arange(4.0), "y_data": 1.0 + 3.0 * np.arange(4.0)}, coords={"place": list("defg")})
    return model


def layout(idata, without=()):
    """What a run consists of: group -> variable -> dimensions, with the coordinates of the places."""
    found = {}
    for name in {"posterior", "observed_data", "constant_data"} & set(idata.children):
        for variable, values in idata[name].data_vars.items():
            places = values["place"].values.tolist() if "place" in values.dims else None
            found[name, variable] = (values.dims, places, values.dtype.kind)
    return {key: value for key, value in found.items() if key[1] not in without}


@cache
def twin():
    with changed(line()):
        return layout(pm.sample(5, tune=5, step=pm.Metropolis(), **PLAIN))


@pytest.mark.parametrize("name", SAMPLERS)
def test_models_that_were_copied_set_observed_and_given_other_data(name):
    with changed(line()):
        idata = SAMPLERS[name]()
    assert layout(idata) == twin()
    assert twin()["posterior", "mean"] == (("chain", "draw", "place"), ["d", "e", "f", "g"], "f")
    # The slope through 1 at 0 is 3, to a prior standard deviation of 2 and 14 / 0.49 of precision: 2.97 +- 0.19. Few
    # draws have to tell it from the 0.95 of the data that the model was made with.
    assert float(idata["posterior"]["slope"].mean()) == pytest.approx(2.97, abs=0.6)


@pytest.mark.parametrize("name", ["sample_khmc", "sample_smc", "sample_pmc"])
def test_blocks_in_models_that_were_changed(name):
    model = changed(line(pk.EstimatedLikelihood))
    with model:
        _, chosen = assign_step_methods(model)
        assert list(chosen) == [pk.KernelHMC]
        idata = SAMPLERS[name]()
    # The data are an argument of the block, too.
    assert layout(idata, without=("y_data",)) == twin()
    assert float(idata["posterior"]["slope"].mean()) == pytest.approx(2.8, abs=0.8)


def of_many(data, total_size=100):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("theta"), observed=data, total_size=total_size)
    return model


def of_a_minibatch():
    return of_many(pm.Minibatch(np.arange(100.0), batch_size=10))


@pytest.mark.parametrize("name", SAMPLERS)
def test_minibatches_are_refused(name):
    with of_a_minibatch(), pytest.raises(ValueError, match=r"pm\.Minibatch.* all the data"):
        SAMPLERS[name]()


@pytest.mark.parametrize("run", [pk.sample_kbr, pk.sample_abc, pk.simulate])
def test_data_that_count_more_than_once_cannot_be_simulated(run):
    with pytest.raises(ValueError, match=r"'y' has a total_size.* without total_size"):
        run(model=of_many(np.arange(10.0)))


def test_draws_of_a_minibatch_fit_are_not_checked_against_a_minibatch():
    """Nor are its data said to be others."""
    draws = az.from_dict({"posterior": {"theta": np.zeros((1, 20))}, "observed_data": {"y": np.arange(10.0)}})
    with pytest.raises(ValueError, match=r"with all the data, also to check draws of pm\.fit"):
        pk.ksd_test(draws, model=of_a_minibatch())


def test_names_of_variables_traces_and_callbacks():
    """Of a sampler that hands its draws to ``pm.sample``."""
    draws, run = [], SAMPLERS["sample_khmc"]
    with line():
        idata = run(var_names=["slope", "mean"], callback=lambda trace, draw: draws.append(draw))
        with pytest.warns(FutureWarning, match="return_inferencedata"):
            trace = run(return_inferencedata=False)
    assert list(idata["posterior"].data_vars) == ["slope", "mean"]
    seen = [d.point["slope"] for d in draws if not d.tuning]
    np.testing.assert_array_equal(idata["posterior"]["slope"].values.ravel(), seen)
    np.testing.assert_array_equal(trace.get_values("slope"), seen)  # the same draws, in PyMC's own container


def interrupts():
    """A callback that interrupts the second chain at its thirtieth draw."""
    draws = count(1)

    def callback(trace, draw):
        if draw.chain == 1 and not draw.tuning and next(draws) == 30:
            raise KeyboardInterrupt

    return callback


def test_an_interrupt_keeps_what_there_is():
    with line():
        idata = SAMPLERS["sample_khmc"](callback=interrupts())
        of_pymc = pm.sample(40, tune=5, step=pm.Metropolis(), callback=interrupts(), **PLAIN)
    assert idata["posterior"].sizes == of_pymc["posterior"].sizes


def test_an_interrupt_of_simulations_keeps_what_there_is():
    given = {"observed": np.ones(3), "summary": np.mean, "epsilon": 0.3}
    with pm.Model():
        pk.KernelABC("y", Ends(150, KeyboardInterrupt, 1.0), pm.Normal("theta", 0.0, 2.0), **given)
        with pytest.warns(UserWarning, match="interrupted: what is finished"):
            idata = SAMPLERS["sample_abc"]()
    assert 100 < idata["prior"].sizes["draw"] < 150
    assert float(idata["posterior"]["theta"].mean()) == pytest.approx(0.9, abs=0.5)


@pytest.mark.parametrize("name", ["sample_khmc", "sample_smc", "sample_pmc"])
def test_an_interrupt_while_tuning_is_one(name):
    with pm.Model():
        pk.EstimatedLikelihood("y", Ends(1, KeyboardInterrupt), pm.Normal("theta"), observed=np.ones(3))
        with pytest.raises(KeyboardInterrupt):
            SAMPLERS[name]()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"nuts_sampler": "numpyro"}, ValueError, r"is for NUTS.*leave it out.*pm\.sample\(nuts_sampler='numpyro'"),
        ({"discard_tuned_samples": False}, ValueError, r"keeps no tuning draws.*pm\.sample\(step=pk\.KernelHMC"),
        ({"var_names": ["slop"]}, ValueError, "var_names has 'slop'; the model has slope, level, spread, mean"),
        ({"drwas": 10}, TypeError, r"unexpected keyword argument 'drwas'.*arguments of pm\.sample"),
        ({"metropolis": {"scaling": 2.0}}, TypeError, "'metropolis'.*names of these steps"),
    ],
    ids=lambda s: next(iter(s)) if isinstance(s, dict) else "",
)
def test_what_pymc_would_refuse_after_tuning_is_refused_before(settings, error, message, monkeypatch):
    monkeypatch.setattr("pymc_kernel.plugin.samplers.pooled._tune_together", None)
    with line(), pytest.raises(error, match=message):
        SAMPLERS["sample_khmc"](**settings)


def test_arguments_of_sequential_monte_carlo():
    with line():
        with pytest.raises(TypeError, match=r"'var_names'.*arguments of pm\.sample_smc and those of its kernel"):
            SAMPLERS["sample_smc"](var_names=["slope"])
        with pytest.raises(ValueError, match=r"leave return_inferencedata out.*pm\.sample_smc\(kernel=pk\.ASMC"):
            SAMPLERS["sample_smc"](return_inferencedata=False)
        # Of the kernel and of what it is built on.
        assert SAMPLERS["sample_smc"](target_accept=0.3, threshold=0.6)["smc_stats"].sizes["chain"]
