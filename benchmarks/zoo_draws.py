"""Draws of the zoo's posteriors to be checked: exact ones, exact ones made wrong, and those of approximations."""

import warnings
from functools import cache, partial
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from scipy import optimize, stats

from benchmarks import harness
from benchmarks.posteriors import ZOO
from benchmarks.posteriors.draws import EXACT_DRAWS, reference_draws
from benchmarks.posteriors.judge import NORMAL_SPAN, largest_rhat, split_names
from pymc_kernel.plugin.model.log_density import compile_scores
from pymc_kernel.plugin.model.unconstrained import constrained_draws, split_positions, unconstrained_draws, value_shapes

FOLDER = harness.BUILD / "zoo_checks"
LONG_RUN = 4000  # draws of NUTS that stand for exact ones
_NUM_WRONG = 1000  # draws of the wrong kinds
_QUIET = {"progressbar": False}
NO_SCORE = ("bball_drive_event_0", "hmm_example", "hudson_lynx_hare", "one_comp_mm_elim_abs", "noisy")


@cache
def model_and_scores(name):
    """Return the model, and its scores as a function of unconstrained draws, compiled once."""
    model = ZOO[name].make()
    scores, shapes = compile_scores(model), value_shapes(model)
    return model, lambda positions: scores(split_positions(positions, shapes))


def as_tree(draws, num_chains):
    """Return draws name -> (n, ...) as a DataTree of chains."""
    n = len(next(iter(draws.values()))) // num_chains
    parts = {k: np.asarray(v)[: n * num_chains].reshape(num_chains, n, *np.shape(v)[1:]) for k, v in draws.items()}
    return az.from_dict({"posterior": parts})


def quantities(posterior):
    """Return the entries of all variables, name -> (chain, draw), without those that are constant by construction."""
    parts = {}
    for variable in posterior.data_vars:
        parts |= split_names(variable, posterior[variable].values)
    return {k: v for k, v in parts.items() if v.min() < v.max()}


def exact(name, rng, n):
    """Return n exact draws, name -> (n, ...); from a long run of NUTS where there is no other way."""
    if name in EXACT_DRAWS:
        return EXACT_DRAWS[name](rng, n)
    known = _long_run(name)
    rows = rng.permutation(len(next(iter(known.values()))))[:n]
    return {k: v[rows] for k, v in known.items()}


@cache
def _long_run(name):
    return _stored(f"{name}-long", partial(_nuts, name, 4, LONG_RUN // 2, 1, 2))


def _nuts(name, chains, draws, seed, every=1):
    """Return draws of NUTS, name -> (chains * draws // every, ...), chain after chain."""
    with model_and_scores(name)[0], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = pm.sample(draws, chains=chains, cores=1, random_seed=seed, **_QUIET)["posterior"].to_dataset()
    rhat = largest_rhat(quantities(posterior))
    if every > 1 and rhat > 1.01:
        raise RuntimeError(f"R-hat of the long run of {name} is {rhat:.3f}.")
    names = [rv.name for rv in model_and_scores(name)[0].free_RVs]
    return {k: posterior[k].values[:, ::every].reshape(-1, *posterior[k].shape[2:]) for k in names}


def _stored(title, make):
    """Return draws that take long to make, from a file where they were made before."""
    file = FOLDER / "draws" / f"{title}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **make())
    with np.load(file) as stored:
        return dict(stored)


def positions_of(name, draws):
    """Return draws name -> (n, ...) on the unconstrained scale, (n, d)."""
    return unconstrained_draws(as_tree(draws, 1), model_and_scores(name)[0])[0]


def _free(name, positions):
    model = model_and_scores(name)[0]
    found = constrained_draws(model, positions)
    return {rv.name: found[rv.name] for rv in model.free_RVs}


def _spread(positions):
    """Return standard deviations that tails do not make larger, (d,)."""
    low, high = np.quantile(positions, [0.05, 0.95], axis=0)
    return (high - low) / NORMAL_SPAN


def exact_sets(count, size, name, seed):
    """Return exact draws, and in how many sets they are to be tested."""
    count = count if name in EXACT_DRAWS else min(count, LONG_RUN // size)
    return exact(name, np.random.default_rng([seed, size]), count * size), count


def reference_sets(name, seed):
    """Return the reference draws as ten sets."""
    return reference_draws(name, references_folder()), 10


def nuts_chains(name, seed):
    """Return ten chains, each to be tested by itself."""
    return _stored(f"{name}-NUTS-{seed}", partial(_nuts, name, 10, 500, seed)), 10


def _changed(change, name, seed):
    rng = np.random.default_rng([seed, 1])
    positions = positions_of(name, exact(name, rng, _NUM_WRONG))
    column = 0 if seed % 2 else positions.shape[1] - 1
    return as_tree(_free(name, change(positions, column)), 4)


def cut(positions, column):
    """Return the draws without the lowest tenth of a coordinate."""
    return positions[positions[:, column] > np.quantile(positions[:, column], 0.1)]


def narrow(positions, column):
    """Return the draws with 0.8 of their spread."""
    middle = np.median(positions, axis=0)
    return middle + 0.8 * (positions - middle)


def shifted(positions, column):
    """Return the draws with one mean shifted by .3 standard deviations."""
    positions = positions.copy()
    positions[:, column] += 0.3 * _spread(positions)[column]
    return positions


@cache
def normal_of(method, name, seed):
    """Return a normal approximation on the unconstrained scale, as a distribution of SciPy.

    ``method`` is "laplace", at the mode, or one of PyMC's variational methods.
    """
    make = partial(_laplace, name, seed) if method == "laplace" else partial(_fit, method, name, seed)
    found = _stored(f"{name}-{method}-normal-{seed}", make)
    return stats.multivariate_normal(found["mean"], found["covariance"], allow_singular=True)


def approximate(method, name, seed, num_draws=_NUM_WRONG):
    """Return draws of a normal approximation."""
    return as_tree(_free(name, positions_from(normal_of(method, name, seed), num_draws, [seed, 3])), 1)


def positions_from(normal, num_draws, seed):
    """Return draws (num_draws, d) of a normal distribution."""
    return normal.rvs(num_draws, random_state=np.random.default_rng(seed)).reshape(num_draws, -1)


def _fit(method, name, seed):
    model = model_and_scores(name)[0]
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        approximation = pm.fit(method=method, random_seed=seed, **_QUIET)
    order = approximation.groups[0].ordering
    columns = np.concatenate([np.arange(order[v.name][1].start, order[v.name][1].stop) for v in model.value_vars])
    mean, covariance = approximation.mean.eval(), approximation.cov.eval()
    return {"mean": mean[columns], "covariance": covariance[np.ix_(columns, columns)]}


def _laplace(name, seed):
    """Return the normal approximation at the mode of the unconstrained density; units are taken from exact draws."""
    model, scores = model_and_scores(name)
    rng = np.random.default_rng([seed, 2])
    units = _spread(positions_of(name, exact(name, rng, 400)))
    log_density = log_density_of(name)

    def slope(u):
        return -scores((u * units)[None])[0] * units

    start = model.initial_point()
    start = np.concatenate([np.ravel(start[v.name]) for v in model.value_vars]) / units
    mode = optimize.minimize(lambda u: -log_density(u * units), start, jac=slope, method="BFGS").x
    step = 1e-3
    hessian = np.array([(slope(mode + e) - slope(mode - e)) / (2 * step) for e in step * np.eye(mode.size)])
    covariance = np.linalg.inv(0.5 * (hessian + hessian.T)) * np.outer(units, units)
    return {"mean": mode * units, "covariance": covariance}


@cache
def log_density_of(name):
    """Return the log density of a model as a function of one position (d,) on the unconstrained scale."""
    model = model_and_scores(name)[0]
    log_density, shapes = model.compile_logp(mode="FAST_COMPILE"), value_shapes(model)
    names = [v.name for v in model.value_vars]

    def at(position):
        parts = split_positions(position[None], shapes)
        return float(log_density({name: part[0] for name, part in zip(names, parts, strict=True)}))

    return at


KINDS = {
    "exact, 20 x 200": partial(exact_sets, 20, 200),
    "exact, 10 x 1000": partial(exact_sets, 10, 1000),
    "reference": reference_sets,
    "NUTS": nuts_chains,
    "cut": partial(_changed, cut),
    "narrow": partial(_changed, narrow),
    "shifted": partial(_changed, shifted),
    "ADVI": partial(approximate, "advi"),
    "full-rank ADVI": partial(approximate, "fullrank_advi"),
    "Laplace": partial(approximate, "laplace"),
}
RIGHT_KINDS, CHANGES = tuple(KINDS)[:4], tuple(KINDS)[4:7]
_ONE_SEED = ("reference", "NUTS", "full-rank ADVI")


def references_folder():
    """Return the folder of posteriordb's reference draws that ``--references`` named, or None."""
    file = FOLDER / "references"
    return Path(file.read_text()) if file.exists() else None


def applies(name, kind, seed):
    """Return whether there is such a row."""
    if kind in _ONE_SEED and seed != 1:
        return False
    if name in NO_SCORE:  # any draws will do: there is nothing to check them with
        return kind == "narrow"
    if kind == "reference":
        folder = references_folder()
        return folder is not None and reference_draws(name, folder) is not None
    return True
