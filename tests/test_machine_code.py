"""Machine code belongs to the sources: it is kept while they stay as they are, and made anew when one changes."""

import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 (its BLAS is counted too)
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_kernel.parallel import num_threads, one_blas_thread, over_row_blocks

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
    command = [sys.executable, "-c", code]
    said = subprocess.check_output(command, cwd=folder, env=surroundings | settings, stderr=subprocess.PIPE, text=True)
    return [float(number) for number in said.split()]


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
def test_changed_callee_of_another_file_is_compiled_anew_with_nowhere_to_keep_it_everything(copy):
    # A locator that is for notebooks alone stands for folders that cannot be written to.
    found = numbers_in_new_process(copy, NUMBA_CACHE_LOCATOR_CLASSES="IPythonCacheLocator")
    assert found == pytest.approx([ROOT_OF_E], abs=1e-15)
    assert not machine_code(copy)
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


# Each part is large enough that BLAS would use its threads: seen to differ without the limit.
SAME_BITS = """
import hashlib
import numpy as np
from pymc_kernel.embeddings import ConditionalMean, DensityRatio
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.scores import Lite

def show(*arrays):
    bits = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
    print(int(hashlib.sha256(bits).hexdigest()[:12], 16))

def log_density(x):
    return -0.5 * (x[0] ** 2 + (x[1] - x[0] ** 2) ** 2 + (x[2:] ** 2).sum())

rng, config = np.random.default_rng(1), kernel_hmc.Config()
state = kernel_hmc.init(np.ones(4), log_density(np.ones(4)), config)
for _ in range(150):
    state, info = kernel_hmc.step(rng, state, log_density, config)
    state = kernel_hmc.adapt(rng, state, info, config, 150)
show(state.position, state.fit.step_size, state.fit.factor)

rng = np.random.default_rng(2)
latent = rng.standard_normal((400, 2))
observed = np.hstack([latent, latent**2]) + 0.3 * rng.standard_normal((400, 4))
conditional = ConditionalMean().fit(observed, latent, rng=1)
show(conditional.weights(observed[:50]))
ratio = DensityRatio().fit(observed[:200], observed[100:], rng=1)
show(ratio(observed))
show(Lite().fit(observed, rng=rng).score(observed))
"""


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if max(blas_threads(), default=1) < 2:
            pytest.fail("this BLAS cannot be given two threads")
        yield


@pytest.mark.usefixtures("two_threads")
def test_blas_has_one_thread_inside_and_as_many_as_before_outside():
    @one_blas_thread
    def fails():
        assert set(blas_threads()) == {1}
        raise ValueError("as it should")

    before = blas_threads()
    with one_blas_thread:
        assert set(blas_threads()) == {1}
        with one_blas_thread:
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before
    with pytest.raises(ValueError, match="as it should"):
        fails()
    assert blas_threads() == before


@pytest.mark.usefixtures("two_threads")
def test_the_last_of_several_threads_restores():
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_blas_thread:
            inside.set()
            leave.wait(10.0)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10.0)
    with one_blas_thread:
        pass
    assert set(blas_threads()) == {1}
    leave.set()
    thread.join()
    assert blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_starts_outside():
    before = blas_threads()
    with one_blas_thread:
        child = os.fork()
        if child == 0:
            started_outside = blas_threads() == before
            with one_blas_thread:
                limited = set(blas_threads()) == {1}
            np.ones((300, 300)) @ np.ones((300, 300))  # its threads work
            os._exit(0 if started_outside and limited and blas_threads() == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_the_same_bits_for_any_number_of_blas_threads():
    threads = [{"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count} for count in ("1", "2")]
    first, second = (numbers_in_new_process(PACKAGE.parent, SAME_BITS, **number) for number in threads)
    assert len(first) == 4
    assert first == second


@pytest.mark.parametrize("work_per_row", [1.0, 1e6])
@pytest.mark.parametrize("most_rows", [None, 7])
@pytest.mark.parametrize("num_rows", [1, 7, 8, 100])
def test_blocks_cover_all_rows_once(num_rows, most_rows, work_per_row):
    times, sizes = np.zeros(num_rows, int), []

    def count(start, stop):
        times[start:stop] += 1
        sizes.append(stop - start)

    over_row_blocks(count, num_rows, work_per_row, most_rows)
    np.testing.assert_array_equal(times, 1)
    assert max(sizes) <= (most_rows or num_rows)
    if most_rows is None and (work_per_row == 1.0 or num_threads() == 1):
        assert len(sizes) == 1  # nothing is split that takes no time or memory
