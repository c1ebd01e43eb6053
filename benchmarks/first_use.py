"""First use of the examples of the methods' pages: what is compiled, by whom and how long, with empty and full caches.

Each example runs twice, each time in a process of its own and with caches of Numba and PyTensor that are empty the
first time. Seconds are of processor time in user mode, of all processes together. Compiling is counted by Numba's own
events, without what each event has inside; what is compiled while PyTensor translates a model is PyTensor's, all else
is ours. The rest of the overhead is PyTensor's, too: rewriting graphs for the first time, libraries in C, saving.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from numba.core import event

from benchmarks import harness
from docs.page_examples import DOCS, examples_of

HEADER = ("example", "cold, s", "warm, s", "overhead, s", "compiled by us", "s", "by PyTensor", "s")
TABLE = harness.Table("first-use", HEADER)
# Pages with one example each, by the name of its row.
EXAMPLES = {
    "noisy": "estimated_likelihood",
    "check": "checks",
    "costly": "sample_surrogate",
    "ring": "smc",
    "outbreak": "kernel_bayes_rule",
    "queue": "learned_likelihood",
    "stored": "simulate",
}


class _Compilations(event.Listener):
    """A listener to Numba's events; writes a line for each function that was compiled."""

    def __init__(self, log: Path):
        self._log, self._here = log, threading.local()

    def on_start(self, event):
        """Begin to count."""
        self._here.__dict__.setdefault("started", []).append([time.thread_time(), 0.0])

    def on_end(self, event):
        """Write the row of a function, its time without that of the functions it had to wait for."""
        started = self._here.started
        begin, inside = started.pop()
        seconds = time.thread_time() - begin
        if started:
            started[-1][1] += seconds
        function = event.data["dispatcher"].py_func
        row = {"seconds": seconds - inside, "ours": not _is_pytensors(), "function": function.__qualname__}
        with self._log.open("a") as file:
            file.write(json.dumps(row | {"signature": str(event.data["args"])}) + "\n")


def _is_pytensors():
    """Return whether PyTensor is at work closer to the event than this package is."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename).parts
        if "pymc_kernel" in path[:-1] or "pytensor" in path[:-1]:
            return "pytensor" in path[:-1]
        frame = frame.f_back
    return True


def watched(page: str, log: str) -> None:
    """Run the example of a method's page and write to ``log`` what is compiled, and at last the seconds in all."""
    event.register("numba:compile", _Compilations(Path(log)))
    example = examples_of(DOCS / "methods" / f"{page}.rst")[0]
    exec(compile(example, page, "exec"), {"__name__": "example"})
    seconds = sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with Path(log).open("a") as file:
        file.write(json.dumps({"all": seconds}) + "\n")


def _run(page, caches: Path):
    """Return the rows of what was compiled, and the seconds in all, of an example with these caches."""
    flags = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), f"base_compiledir={caches / 'pytensor'}"]))
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    settings = {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": str(caches / "numba"), "PYTHONPATH": str(harness.ROOT)}
    surroundings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        call = f"from benchmarks.first_use import watched; watched({page!r}, {str(log)!r})"
        subprocess.run(
            [sys.executable, "-c", call], cwd=folder, env=surroundings | settings | one_thread, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    return rows[:-1], rows[-1]["all"]


def main(examples: tuple[str, ...] = tuple(EXAMPLES), functions=False):
    """Measure the ``examples``; with ``functions`` also print what of ours was compiled, the longest first."""
    rows = []
    for name in examples:
        with tempfile.TemporaryDirectory() as folder:
            compiled, cold = _run(EXAMPLES[name], Path(folder))
            _, warm = _run(EXAMPLES[name], Path(folder))
        own = [row for row in compiled if row["ours"]]
        others = [row for row in compiled if not row["ours"]]
        counts = [cell for part in (own, others) for cell in (len(part), f"{sum(r['seconds'] for r in part):.1f}")]
        rows.append([name, f"{cold:.1f}", f"{warm:.1f}", f"{cold - warm:.1f}", *counts])
        print(*rows[-1], flush=True)
        if functions:
            for row in sorted(own, key=lambda row: -row["seconds"]):
                print(f"  {row['seconds']:.2f} {row['function']} {row['signature']}")
    if set(examples) == set(EXAMPLES):
        TABLE.write(rows, "User CPU seconds; caches empty and full.")


if __name__ == "__main__":
    harness.run(main)
