"""Neural networks and rejection by other packages on the ten tasks of ``benchmarks.community``, judged as ours are.

Package sbi by its defaults, 1,000 simulations in five rounds: a network for the likelihood, sampled by slice sampling
(``NLE``), and one for the posterior with atomic proposals (``NPE``). Package pyABC: sequential rejection (``ABC-SMC``),
populations of its default size, distances by its adaptive norm, draws from the kernel density that it proposes from.
Package BayesFlow: a coupling flow by its workflow's defaults, trained on 1,000 simulations of the prior, with
everything standardized, of parameters on PyMC's unconstrained scale.
Observations, reference draws and the judge are those of ``benchmarks.community``, whose rows of
``sample_likelihood_free`` stand beside. Seconds are those of all processors, simulations included. A run that takes
longer than ``limit`` of them is ended, and its row says so.

sbi brings PyTorch, some gigabytes: it needs an environment of its own, with the extra '.[rivals-simulators]', which has
all three. Of a package that is not there the rows that are kept stay.
"""

import importlib.util
import os
import signal
import time
import warnings
from functools import partial
from importlib.metadata import version
from itertools import product

import numpy as np
import pymc as pm

from benchmarks import community, harness
from benchmarks.classifier import accuracy
from benchmarks.sbibm_tasks import GLM_FACTOR, LOTKA, SIR, TASKS, observation, reference
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.plugin.model.unconstrained import constrained_draws

ROWS = harness.Rows(harness.ROWS / "community_rivals.jsonl", lambda row: tuple(row["key"]))
BUDGET, ROUNDS = community.BUDGETS[0], 5
PACKAGES = {"NLE": "sbi", "NPE": "sbi", "ABC-SMC": "pyabc", "BayesFlow": "bayesflow"}
UNIFORM = {"two_moons": (1.0, 2), "mixture": (10.0, 2), "linear, uniform prior": (1.0, 10)}  # half the width, and d
LOGS = {"epidemic": SIR, "Lotka-Volterra": LOTKA}  # means and standard deviations of logarithms
OURS = "pk.sample_likelihood_free"
METHODS = OURS, *PACKAGES
HEADER = ("task", *METHODS, *(f"{name}, s" for name in METHODS), "best neural of 2021")
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
    half, size = UNIFORM.get(task, (3.0, 5))
    return BoxUniform(-half * torch.ones(size), half * torch.ones(size))


def _learned(name, task, observed, num_draws, seed):
    """Return draws (num_draws, d) of a posterior that a network was trained for."""
    import torch
    from sbi import inference

    torch.set_num_threads(1)
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


def _accepted(task, observed, num_draws, seed):
    """Return draws (num_draws, d) of pyABC, whose parameters are normal or uniform, as those of the prior are made."""
    import pyabc
    from pyabc.sampler import SingleCoreSampler

    np.random.seed(seed)  # noqa: NPY002 - pyABC draws from it
    rng = np.random.default_rng(seed)
    if task in LOGS:
        center, sd = np.broadcast_arrays(*LOGS[task])
        priors, to_theta = [("norm", c, s) for c, s in zip(center, sd, strict=True)], np.exp
    elif TASKS[task].published == "bernoulli_glm":
        priors, to_theta = [("norm", 0.0, 1.0)] * 10, lambda z: GLM_FACTOR @ z
    elif task == "linear":
        priors, to_theta = [("norm", 0.0, np.sqrt(0.1))] * 10, np.asarray
    else:
        half, size = UNIFORM.get(task, (3.0, 5))
        priors, to_theta = [("uniform", -half, 2.0 * half)] * size, np.asarray
    names = [f"p{i:02}" for i in range(len(priors))]

    def simulator(parameters):
        theta = to_theta(np.array([parameters[name] for name in names]))
        return {"data": TASKS[task].simulate(rng, theta[None])[0]}

    prior = pyabc.Distribution(**{n: pyabc.RV(*p) for n, p in zip(names, priors, strict=True)})
    settings = {"distance_function": pyabc.AdaptivePNormDistance(p=2), "sampler": SingleCoreSampler()}
    smc = pyabc.ABCSMC(simulator, prior, **settings)
    smc.new("sqlite://", {"data": observed})
    history = smc.run(max_total_nr_simulations=BUDGET)
    density = pyabc.MultivariateNormalTransition()
    density.fit(*history.get_distribution())
    draws = density.rvs(num_draws)[names].to_numpy()
    return np.array([to_theta(z) for z in draws])


def _amortized(task, observed, num_draws, seed):
    """Return draws (num_draws, d) of BayesFlow's network for any data, given these."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import bayesflow
    import keras

    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    with pm.Model() as model:
        TASKS[task].prior()
    places = ModelPrior(model).draw(rng, BUDGET)
    data = TASKS[task].simulate(rng, constrained_draws(model, places, ["theta"])["theta"])
    names = {"inference_variables": "place", "inference_conditions": "data"}
    workflow = bayesflow.BasicWorkflow(**names, standardize="all")
    workflow.fit_offline({"place": places, "data": data}, verbose=0)
    found = workflow.sample(num_samples=num_draws, conditions={"data": observed[None]})
    return constrained_draws(model, found["place"][0].astype(float), ["theta"])["theta"]


DRAWN_BY = {
    "NLE": partial(_learned, "NLE"), "NPE": partial(_learned, "NPE"), "ABC-SMC": _accepted, "BayesFlow": _amortized,
}  # fmt: skip


def run(task, number, name, limit):
    """Return the row of one posterior."""
    exact, begun = reference(task, number), time.process_time()
    package = PACKAGES[name]
    row = {"key": [task, number, name], "package": package, "version": version(package)}
    signal.signal(signal.SIGVTALRM, _ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = task, observation(task, number), len(exact), number
            draws = DRAWN_BY[name](*arguments)
    except TimeoutError:
        return row | {"accuracy": 1.0, "seconds": limit, "is_ended": True}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return row | {"accuracy": accuracy(draws, exact), "seconds": time.process_time() - begun, "is_ended": False}


def _ended(*_):
    raise TimeoutError


def cells(task, rows):
    """Return a row of the table: means over the observations that a method has run, ours over those that any has."""
    of_methods = [[row for row in rows if row["key"][2] == name] for name in PACKAGES]
    numbers = {row["key"][1] for row in rows}
    known = community.ROWS.kept()
    keys = [(task, number, BUDGET, OURS) for number in sorted(numbers)]
    of_methods.insert(0, [known[key] for key in keys if key in known])
    shown, seconds = [], []
    for found in of_methods:
        ended = sum(row.get("is_ended", False) for row in found)
        text = community.mean_accuracy(found) if found else "-"
        shown.append(f"{text}, {ended} ended" if ended else text)
        seconds.append(f"{np.mean([row['seconds'] for row in found]):.0f}" if found else "-")
    return [task, *shown, *seconds, f"{community.PUBLISHED[task, BUDGET][3]:.3f}"]


def main(observations=(1, 2, 3), tasks=tuple(TASKS), names=tuple(PACKAGES), limit=900, again=False):
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in names if importlib.util.find_spec(PACKAGES[name]) is not None]
    wanted = [(t, n, m) for n, t, m in product(observations, tasks, names)]
    tell = "{accuracy:.3f}, {seconds:.0f} s".format_map
    rows = ROWS.complete(lambda *task: run(*task, limit), wanted, tell, again)
    by_task = {task: [row for row in rows if row["key"][0] == task] for task in TASKS}
    versions = ", ".join(sorted({f"{row.get('package', 'sbi')} {row['version']}" for row in rows}))
    note = f"Means over the observations that the others have run, standard errors; {versions}."
    print(TABLE.write([cells(task, own) for task, own in by_task.items() if own], note))


if __name__ == "__main__":
    harness.run(main)
