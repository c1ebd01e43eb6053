import datetime
import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.model.fingerprint import array_fingerprint, model_fingerprint
from pymc_kernel.plugin.model.forward import forward_graph

STEPS = 10
TABLE = {"shift": 0.0}


def helper(x):
    return x + STEPS + TABLE["shift"]


def simulator(rng, theta, size):
    return rng.normal(helper(theta), 1.0, size)


def other_helper(x):
    return x + STEPS + 1


class Solver:
    def __init__(self, tolerance):
        self.tolerance, self._calls = tolerance, 0

    def __call__(self, rng, theta, size):
        self._calls += 1
        return rng.normal(theta, self.tolerance, size)

    def method(self, rng, theta, size):
        return self(rng, theta, size)


def fingerprint(random, observed=0.0, covariate=1.0, width=2):
    """Of a model with this simulator."""

    def draw(theta, rng=None, size=None):
        return random(rng, theta, size)

    with pm.Model() as model:
        theta = pm.Normal("theta", covariate, 1)
        pm.CustomDist("y", theta, random=draw, observed=np.full(width, observed))
    return model_fingerprint(forward_graph(model))


def differing(one, other):
    return [key for key in one if one[key] != other[key]]


@pytest.mark.parametrize("block", [pk.KernelABC, pk.SyntheticLikelihood])
def test_evaluations_do_not_change_it(block):
    """Simulations that were stored before sampling are still those of the model after it."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        block("y", simulator, theta, observed=np.full(2, 10.0), num_simulations=9)
    before = model_fingerprint(forward_graph(model))
    assert not np.isnan(model.compile_logp()({"theta": 0.0}))  # an unbiased estimate may be zero
    assert model_fingerprint(forward_graph(model)) == before


def test_the_same_model_made_again_has_the_same():
    assert fingerprint(simulator) == fingerprint(simulator)
    assert fingerprint(simulator) == fingerprint(simulator, observed=3.0), "data do not count"
    solver, same = Solver(0.1), Solver(1)
    before = fingerprint(solver)
    solver(np.random.default_rng(1), 0.0, 2)
    assert fingerprint(solver) == before, "what a call leaves behind does not count"
    assert fingerprint(closing_over(same, same, same)) == fingerprint(ONES), "one object or three equal ones"


@pytest.mark.slow
def test_it_is_the_same_in_another_process():
    code = "print(fingerprint(simulator), fingerprint(Solver(pd.DataFrame({'a': [1.0]})).method), sep='')"
    here = f"{fingerprint(simulator)}{fingerprint(Solver(pd.DataFrame({'a': [1.0]})).method)}\n"
    command = [sys.executable, "-c", f"from tests.plugin.test_fingerprint import *; {code}"]
    other = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert other.stdout == here, other.stderr


def closing_over(first, second, third):
    def draw(rng, theta, size):
        return rng.normal(theta, first.tolerance + second.tolerance, size) + third.tolerance

    return draw


ONES = closing_over(*map(Solver, (1, 1, 1)))


def within_itself(*values):
    solver = Solver(list(values))
    solver.tolerance.append(solver)
    return solver


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (simulator, lambda rng, theta, size: rng.normal(theta, 2.0, size)),
        (lambda rng, theta, size: rng.normal(theta, 1.0, size), lambda rng, theta, size: rng.normal(theta, 2.0, size)),
        (functools.partial(simulator), functools.partial(simulator, size=3)),
        (Solver(0.1), Solver(0.2)),
        (Solver(0.1).method, Solver(0.2).method),
        (Solver(np.arange(5)).method, Solver(np.arange(1, 6)).method),
        (Solver(range(5)), Solver(range(6))),
        (Solver(datetime.date(2020, 1, 1)), Solver(datetime.date(2021, 1, 1))),
        (Solver(pd.DataFrame({"a": [1, 2]})), Solver(pd.DataFrame({"a": [1, 3]}))),
        (Solver(functools.cache(helper)), Solver(functools.cache(other_helper))),
        (ONES, closing_over(*map(Solver, (2, 1, 1)))),
        (ONES, closing_over(*map(Solver, (1, 2, 1)))),
        (ONES, closing_over(*map(Solver, (1, 1, 2)))),
        (within_itself(1, 23), within_itself(12, 3)),
    ],
)
def test_another_simulator_has_another(one, other):
    assert fingerprint(one) == fingerprint(one)
    assert differing(fingerprint(one), fingerprint(other)) == ["simulators"]


@pytest.mark.parametrize(("name", "value"), [("STEPS", 11), ("TABLE", {"shift": 1.0}), ("helper", other_helper)])
def test_what_a_simulator_calls_counts(name, value, monkeypatch):
    before = fingerprint(simulator)
    monkeypatch.setattr(sys.modules[__name__], name, value)
    assert differing(before, fingerprint(simulator)) == ["simulators"]


def test_numbers_and_shapes_count():
    assert "constants" in differing(fingerprint(simulator), fingerprint(simulator, covariate=2.0))
    assert "variables" in differing(fingerprint(simulator), fingerprint(simulator, width=3))
    for other in (np.zeros((2, 2)), np.zeros(4, dtype=int)):
        assert array_fingerprint([np.zeros(4)]) != array_fingerprint([other])
