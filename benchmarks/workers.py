"""What more workers are worth: ``sample_surrogate`` on a likelihood that sleeps, so that any machine has enough cores.

The same run with one worker and with eight: processes of its own, threads, and Dask with eight threads; batches of
twice the workers for all. Time is that of the whole call, with starting the workers, compiling the model in each, and
the method's own work, whose processor time is beside it: on a busy machine it takes longer. The second
run has ten exact draws of each of eight chains besides.
All runs must make the same evaluations.
"""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kernel as pk
from benchmarks import harness

WORKERS, NUM_DIMS = 8, 4
HEADER = (
    "workers",
    "few evaluations, s",
    "times as fast",
    "own work, s",
    "and exact draws, s",
    "times as fast",
    "own work, s",
)


class Sleeping(Op):
    """A log likelihood with a bend that takes its time."""

    def __init__(self, seconds: float, spread: float):
        self.seconds, self.spread = seconds, spread

    def make_node(self, x):
        """Return the node for a vector."""
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        """Sleep, for a time that depends on the place, and return the log likelihood."""
        (x,) = inputs
        time.sleep(self.seconds * (1.0 + self.spread * np.sin(1000.0 * x.sum())))
        outputs[0][0] = np.asarray(-0.5 * ((x[0] ** 2 - x[1]) ** 2 + ((x[2:] - 0.5) ** 2).sum() / 0.04))


def model(seconds, spread):
    """Return a model of four parameters."""
    with pm.Model() as made:
        x = pm.Normal("x", shape=NUM_DIMS)
        pm.Potential("y", Sleeping(seconds, spread)(x))
    return made


def timed(made, **settings):
    """Return seconds of a run, those of this process's own work, and the evaluations."""
    began, worked = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few evaluations need not be trusted
        idata = pk.sample_surrogate(
            model=made, tolerance=0.0, batch_size=2 * WORKERS, random_seed=1, progressbar=False, **settings
        )
    return time.perf_counter() - began, time.process_time() - worked, idata["evaluations"]["position"].values


@contextmanager
def dask_threads():
    """Yield the executor of a local Dask cluster of eight threads."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(1, threads_per_worker=WORKERS, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client.get_executor()


KINDS = {
    "1 (this process)": lambda: nullcontext(None),
    "8 processes": lambda: nullcontext(WORKERS),
    "8 threads": lambda: ThreadPoolExecutor(WORKERS),
    "8 threads of Dask": dask_threads,
}


def main(seconds=1.0, evaluations=160, spread=0.0, kinds=tuple(KINDS)):
    """Print the table; times of likelihoods vary by the ``spread``, a share."""
    made, rows, first, expected = model(seconds, spread), [], None, {}
    for name in kinds:
        taken = []
        for exact in (False, True):
            with KINDS[name]() as executor:
                settings = {"draws": 10, "chains": WORKERS, "evaluations": evaluations, "exact": exact}
                *seconds_taken, positions = timed(made, executor=executor, **settings)
            if not np.array_equal(positions, expected.setdefault(exact, positions)):
                raise RuntimeError(f"{name}: other evaluations than those of one worker.")
            taken.append(seconds_taken)
        first = taken if first is None else first
        rows.append(
            [name, *(f"{x:.1f}" for (a, own), (b, _) in zip(taken, first, strict=True) for x in (a, b / a, own))]
        )
        print(*rows[-1], sep="\t", flush=True)
    print(harness.markdown_table(HEADER, rows))


if __name__ == "__main__":
    harness.run(main)
