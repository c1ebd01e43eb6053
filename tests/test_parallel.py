import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 (its BLAS is counted too)
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_kernel.parallel import num_threads, one_blas_thread, over_row_blocks

# Each part is large enough that BLAS would use its threads: seen to differ without the limit.
SAME_BITS = """
import hashlib
import numpy as np
from pymc_kernel.embeddings import ConditionalMean, DensityRatio
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.scores import Lite

def show(name, *arrays):
    print(name, hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest())

def log_density(x):
    return -0.5 * (x[0] ** 2 + (x[1] - x[0] ** 2) ** 2 + (x[2:] ** 2).sum())

rng, config = np.random.default_rng(1), kernel_hmc.Config()
state = kernel_hmc.init(np.ones(4), log_density(np.ones(4)), config)
for _ in range(150):
    state, info = kernel_hmc.step(rng, state, log_density, config)
    state = kernel_hmc.adapt(rng, state, info, config, 150)
show("kernel HMC", state.position, state.fit.step_size, state.fit.factor)

rng = np.random.default_rng(2)
latent = rng.standard_normal((400, 2))
observed = np.hstack([latent, latent**2]) + 0.3 * rng.standard_normal((400, 4))
conditional = ConditionalMean().fit(observed, latent, rng=1)
show("conditional", conditional.weights(observed[:50]))
ratio = DensityRatio().fit(observed[:200], observed[100:], rng=1)
show("ratio", ratio(observed))
show("score", Lite().fit(observed, rng=rng).score(observed))
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
    runs = []
    for count in ("1", "2"):
        environment = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        command = [sys.executable, "-c", SAME_BITS]
        runs.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    (first, error), (second, _) = (run.communicate() for run in runs)
    assert len(first.splitlines()) == 4, error
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
