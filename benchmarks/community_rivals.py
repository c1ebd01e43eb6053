"""Neural networks of this year on the ten tasks of ``benchmarks.community``, judged as ours are.

Package sbi by its defaults, 1,000 simulations in five rounds: a network for the likelihood, sampled by slice sampling
(``NLE``), and one for the posterior with atomic proposals (``NPE``). Observations, reference draws and the judge are
those of ``benchmarks.community``, whose rows of ``sample_likelihood_free`` stand beside. Seconds are those of all
processors, simulations included. A run that takes longer than ``limit`` of them is ended, and its row says so.

It brings PyTorch, some gigabytes: needs an environment of its own, with the extra '.[rivals-simulators]'. Without it
the table is written from the rows that are kept.
"""

import importlib.util
import os
import signal
import time
import warnings
from itertools import product

import numpy as np

from benchmarks import community, harness, measures
from benchmarks.classifier import accuracy
from benchmarks.sbibm_tasks import GLM_FACTOR, LOTKA, SIR, TASKS, observation, reference

ROWS = harness.Rows(harness.ROWS / "community_rivals.jsonl", lambda row: tuple(row["key"]))
BUDGET, ROUNDS = 1000, 5
LOGS = {"epidemic": SIR, "Lotka-Volterra": LOTKA}  # means and standard deviations of logarithms
OURS = "pk.sample_likelihood_free"
HEADER = ("task", OURS, "NLE", "NPE", f"{OURS}, s", "NLE, s", "NPE, s", "best neural of 2021")
TABLE = harness.Table("community-rivals", HEADER, [(name,) for name in TASKS])


def _prior(task):
    """Return the prior of a task, of PyTorch."""
    import torch
    from sbi.utils import BoxUniform
    from torch import distributions

    if task in LOGS:
        center, sd = map(torch.tensor, np.broadcast_arrays(*LOGS[task]))
        return distributions.Independent(distributions.LogNormal(center.float(), sd.float()), 1)
    if TASKS[task].published == "bernoulli_glm":
        return distributions.MultivariateNormal(torch.zeros(10), scale_tril=torch.tensor(GLM_FACTOR).float())
    if task == "linear":
        return distributions.MultivariateNormal(torch.zeros(10), 0.1 * torch.eye(10))
    half, size = {"two_moons": (1.0, 2), "mixture": (10.0, 2), "linear, uniform prior": (1.0, 10)}.get(task, (3.0, 5))
    return BoxUniform(-half * torch.ones(size), half * torch.ones(size))


def _learned(name, task, observed, num_draws, seed):
    """Return draws (num_draws, d) of a posterior that a network was trained for."""
    import torch
    from sbi import inference

    torch.manual_seed(seed)
    rng, prior = np.random.default_rng(seed), _prior(task)
    learner = getattr(inference, name)(prior, show_progress_bars=False)
    observed = torch.tensor(observed).float()[None]
    proposal = prior
    for _ in range(ROUNDS):
        theta = proposal.sample((BUDGET // ROUNDS,))
        data = torch.tensor(TASKS[task].simulate(rng, theta.double().numpy())).float()
        known = {"proposal": proposal} if name == "NPE" else {}
        learner.append_simulations(theta, data, **known).train()
        proposal = learner.build_posterior().set_default_x(observed)
    return proposal.sample((num_draws,), show_progress_bars=False).double().numpy()


def run(task, number, name, limit):
    """Return the row of one posterior."""
    import torch

    torch.set_num_threads(1)
    exact, begun = reference(task, number), time.process_time()
    row = {"key": [task, number, name], "version": importlib.metadata.version("sbi")}
    signal.signal(signal.SIGVTALRM, _ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draws = _learned(name, task, observation(task, number), len(exact), number)
    except TimeoutError:
        return row | {"accuracy": 1.0, "seconds": limit, "is_ended": True}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return row | {"accuracy": accuracy(draws, exact), "seconds": time.process_time() - begun, "is_ended": False}


def _ended(*_):
    raise TimeoutError


def cells(task, rows, ours):
    """Return a row of the table: means over the observations that all have."""
    by_name = {name: {row["key"][1]: row for row in rows if row["key"][2] == name} for name in ("NLE", "NPE")}
    own = {row["key"][1]: row for row in ours}
    shown, seconds = [], []
    for found in (own, *by_name.values()):
        scores = np.array([row["accuracy"] for row in found.values()])
        text = "-" if not len(scores) else f"{scores[0]:.3f} (-)" if len(scores) == 1 else measures.with_error(scores)
        ended = sum(row.get("is_ended", False) for row in found.values())
        shown.append(f"{text}, {ended} ended" if ended else text)
        seconds.append(f"{np.mean([row['seconds'] for row in found.values()]):.0f}" if found else "-")
    return [task, *shown, *seconds, f"{community.PUBLISHED[task, BUDGET][3]:.3f}"]


def main(observations=(1, 2, 3), tasks=tuple(TASKS), names=("NLE", "NPE"), limit=900, again=False):
    is_there = importlib.util.find_spec("sbi") is not None
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    wanted = [(t, n, m) for n, t, m in product(observations, tasks, names)] if is_there else []
    tell = "{accuracy:.3f}, {seconds:.0f} s".format_map
    rows = ROWS.complete(lambda *task: run(*task, limit), wanted, tell, again)
    ours = [row for row in community.ROWS.kept().values() if row["key"][2:] == [BUDGET, OURS]]
    table = []
    for task in TASKS:
        of_task = [row for row in rows if row["key"][0] == task]
        numbers = {row["key"][1] for row in of_task}
        own = [row for row in ours if row["key"][0] == task and row["key"][1] in numbers]
        if of_task:
            table.append(cells(task, of_task, own))
    versions = ", ".join(sorted({f"sbi {row['version']}" for row in rows}))
    print(TABLE.write(table, f"Means over the observations that the networks have run, standard errors; {versions}."))


if __name__ == "__main__":
    harness.run(main)
