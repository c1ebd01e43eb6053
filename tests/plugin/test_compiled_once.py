"""What is compiled for a model is used again for as long as the model is the same."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pymc as pm

from pymc_kernel.plugin.model.interpreter import compiled_once
from pymc_kernel.plugin.model.scores import compile_scores


def test_compiled_again_when_the_model_or_one_of_its_parts_is_another():
    calls = []
    compiled = compiled_once(lambda model: calls.append(model) or len(calls))
    with pm.Model() as model:
        x = pm.Normal("x")
    assert [compiled(model), compiled(model)] == [1, 1]
    with model:
        pm.Potential("p", -(x**2))
    assert [compiled(model), compiled(model)] == [2, 2]
    with model:
        pm.HalfNormal("y")
    assert compiled(model) == 3
    with pm.Model() as other:
        pm.Normal("x")
    assert [compiled(other), compiled(model), compiled(other)] == [4, 3, 4]
    with ThreadPoolExecutor(1) as pool:  # compiled functions work in room of their own
        assert pool.submit(compiled, model).result() == 5
    assert compiled(copy.deepcopy(other)) == 6
    assert cloudpickle.loads(cloudpickle.dumps(other)).named_vars.keys() == other.named_vars.keys()


def test_a_model_is_not_kept_for_what_was_compiled_for_it(quick_models):
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", x, observed=np.zeros(3))
    compile_scores(model)([np.zeros(2)])
    gone = weakref.ref(model)
    del model, x
    gc.collect()
    assert gone() is None


def test_scores_are_those_of_the_model_as_it_is_now(quick_models):
    with pm.Model() as model:
        data = pm.Data("data", np.zeros(3))
        x = pm.Normal("x")
        pm.Normal("y", x, observed=data)
    values = [np.array([1.0, 2.0])]
    np.testing.assert_allclose(compile_scores(model)(values)[:, 0], [-4.0, -8.0])
    with model:
        pm.set_data({"data": np.array([1.0, 1.0, 1.0, 1.0])})
    np.testing.assert_allclose(compile_scores(model)(values)[:, 0], [-1.0, -6.0])
    with model:
        pm.Potential("p", -x)
    np.testing.assert_allclose(compile_scores(model)(values)[:, 0], [-2.0, -7.0])
