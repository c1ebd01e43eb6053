"""Machine code belongs to the sources: it is kept while they stay as they are, and made anew when one changes."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pymc_kernel"
ROOT_OF_E = math.exp(-0.5)
SUM = "import pymc_kernel as pk; print(float(pk.kernels.Gaussian(1.0)([[0.0]], [[1.0]])[0, 0]))"


#: Numbers of a Stein test, of surrogates of both kinds, and of a density.
MANY = """
import numpy as np
import pymc_kernel as pk
x = np.random.default_rng(0).normal(size=(40, 2))
tests = [pk.stein.ksd_squared(x, -x, kernel) for kernel in (None, pk.kernels.Matern52(1.0))]
tests += [pk.stein.ksd_test(x, -x, num_replicates=50, coordinates=True).p_value, *pk.stein.stein_thin(x, -x, 5)]
values = pk.scores.Values().fit(x, -0.5 * (x**2).sum(axis=1))
estimators = pk.scores.Lite(), pk.scores.Finite(num_features=9), pk.scores.Nystrom(num_basis=4)
fits = [values, *(estimator.fit(x) for estimator in estimators)]
numbers = [np.ravel(part) for fit in fits for part in (fit.log_density(x), fit.score(x))]
print(*tests, *np.concatenate(numbers), *pk.density.BayesianKDE().fit(x).bandwidth.ravel())
"""


def numbers_in_new_process(folder, code=SUM, **settings):
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA")} | {"PYTHONPATH": str(folder)}
    call = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=surroundings | settings,
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(number) for number in call.stdout.split()]


@pytest.mark.slow
def test_without_machine_code_the_numbers_are_the_same():
    """Numba's own switch, for whoever looks for an error."""
    plain = numbers_in_new_process(PACKAGE.parent, MANY, NUMBA_DISABLE_JIT="1")
    assert plain == pytest.approx(numbers_in_new_process(PACKAGE.parent, MANY), rel=1e-6, abs=1e-9)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "pymc_kernel", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def machine_code(folder):
    return {str(f): f.stat().st_mtime_ns for f in folder.rglob("*.nb[ic]")}


@pytest.mark.slow
def test_changed_callee_of_another_file_is_compiled_anew(copy):
    assert numbers_in_new_process(copy) == pytest.approx([ROOT_OF_E], abs=1e-15)
    first = machine_code(copy)
    assert first
    with (copy / "pymc_kernel" / "plugin" / "__init__.py").open("a") as file:
        file.write("# nothing is compiled there\n")
    numbers_in_new_process(copy)
    assert machine_code(copy) == first  # read, not made again
    callee = copy / "pymc_kernel" / "kernels" / "profiles.py"
    source = "# a line more\n" + callee.read_text()
    callee.write_text(source.replace("        p = p * r + 0.5\n", "        p = p * r + 0.6\n"))
    remainder = math.log(2.0) - 0.5
    assert numbers_in_new_process(copy) == pytest.approx([ROOT_OF_E + 0.1 * remainder**2 / 2.0], abs=1e-15)
    changed = machine_code(copy)
    assert set(changed) == set(first)  # overwritten: nothing is left behind
    assert all(changed[name] > first[name] for name in first)


@pytest.mark.slow
def test_nowhere_to_keep_it(copy):
    """A locator that is for notebooks alone stands for folders that cannot be written to."""
    found = numbers_in_new_process(copy, NUMBA_CACHE_LOCATOR_CLASSES="IPythonCacheLocator")
    assert found == pytest.approx([ROOT_OF_E], abs=1e-15)
    assert not machine_code(copy)


@pytest.mark.slow
def test_machine_code_for_a_type_that_is_gone_is_made_anew(copy):
    """As after an update that has renamed a class."""
    source = """
from typing import NamedTuple
from pymc_kernel.machine_code import compiled
class First(NamedTuple):
    number: float
@compiled
def half(pair):
    return 0.5 * pair.number
def halved(number):
    return half(First(number))
"""
    for name in ("First", "Second"):
        (copy / "pymc_kernel" / "kernels" / "halves.py").write_text(source.replace("First", name))
        code = "from pymc_kernel.kernels.halves import halved; print(halved(3.0))"
        assert numbers_in_new_process(copy, code) == [1.5]
