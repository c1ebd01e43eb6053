import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import Elemwise

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.chains import density_and_gradient
from pymc_kernel.plugin.model import interpreter
from tests.plugin.parts import QUIET, black_box, data_around

X = np.concatenate([np.random.default_rng(1).normal(0.0, 20.0, 300), [0.0, -1e300, 1e300, -1e-20, np.inf, -np.inf]])
EXPRESSIONS = {
    "softplus": pt.softplus,
    "log1mexp": lambda x: pt.log1mexp(-abs(x)),
    "trigamma": lambda x: pt.tri_gamma(pt.minimum(abs(x), 1e3) + 0.1),
    "clip": lambda x: pt.clip(x, -1.0, 2.0),
    "clip, bounds crossed": lambda x: pt.clip(x, 2.0, -1.0),
    "second": lambda x: pt.second(x, pt.as_tensor_variable(3.0)) + 0.0 * pt.isinf(x),
}


@pytest.mark.parametrize("mode", ["QUICK", "STABLE"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_numpy_functions_are_those_of_the_interpreter_also_in_workers(name, mode):
    x, single = pt.vector("x"), pt.fvector("x")
    theirs = pytensor.function([x], EXPRESSIONS[name](x), mode="FAST_COMPILE")
    ours, one = (pytensor.function([v], EXPRESSIONS[name](v), mode=getattr(interpreter, mode)) for v in (x, single))
    values, some = np.append(X, np.nan), X[:300].astype(np.float32)
    np.testing.assert_allclose(ours(values), theirs(values), rtol=1e-14)
    np.testing.assert_allclose(one(some), theirs(some.astype(float)), rtol=3e-6)
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(ours))(values), ours(values))


@pytest.mark.parametrize("mode", ["QUICK", "STABLE"])
def test_no_number_is_handed_to_python_by_itself(mode):
    """Priors with bounds, logistic regression: no operation is left without a NumPy function."""
    with pm.Model() as model:
        rate = pm.Uniform("rate", 0.0, 2.0)
        share = pm.Beta("share", 2.0, 3.0, shape=3)
        scale = pm.HalfNormal("scale")
        cut = pm.TruncatedNormal("cut", share.sum(), scale, lower=-1.0, upper=4.0)
        pm.Bernoulli("y", logit_p=rate * np.arange(5.0) - cut, observed=[0, 1, 0, 1, 1])
        pm.Censored("z", pm.Exponential.dist(rate), lower=None, upper=2.0, observed=[0.1, 2.0])
    function = model.compile_fn([model.logp(), model.dlogp()], mode=getattr(interpreter, mode))
    nodes = function.f.maker.fgraph.apply_nodes
    slow = {str(n.op) for n in nodes if isinstance(n.op, Elemwise) and n.op.nfunc_spec is None}
    assert not {name for name in slow if "Cast" not in name}


@pytest.fixture
def reordered(monkeypatch):
    """Whether Numba may reorder sums, of each graph that is compiled to machine code."""
    found, convert = [], NumbaLinker.fgraph_convert

    def noted(self, *args, **kwargs):
        found.append(pytensor.config.numba__fastmath)
        return convert(self, *args, **kwargs)

    monkeypatch.setattr(NumbaLinker, "fgraph_convert", noted)
    return found


def test_machine_code_adds_in_order(reordered):
    """Else a second process, whose parts come from a cache, has other bits, and so other draws."""
    model = data_around(lambda: pm.Normal("x", shape=3).sum(), 1.0)
    before = pytensor.config.numba__fastmath
    with pytensor.config.change_flags(mode="NUMBA"):
        density_and_gradient(model, tempered=True)
        interpreter.of_vector(model, model.value_vars, model.initial_point(), [model.logp()], {})
    assert reordered
    assert not any(reordered)
    assert pytensor.config.numba__fastmath is before


@pytest.mark.slow
@pytest.mark.parametrize("call", ["sample_surrogate", "sample_khmc", "sample_smc", "sample_pmc"])
def test_no_call_compiles_sums_in_another_order(call, reordered):
    model = data_around(lambda: black_box(np.tanh, "v")(pm.Normal("x", shape=2)), [0.4, -0.2])
    size = {"sample_surrogate": {"evaluations": 40}, "sample_khmc": {"draws": 50}}.get(call, {"draws": 1000})
    getattr(pk, call)(model=model, **size, **QUIET)
    assert reordered
    assert not any(reordered)
