"""What others make of the same few evaluations: PyVBMC and emcee on targets of ``few_evaluations``.

Distance: as there. All methods begin in the same normal prior and get 50 (d + 2) evaluations of log prior plus log
likelihood, without noise. PyVBMC (variational Bayesian Monte Carlo, Acerbi 2020) has plausible bounds of one standard
deviation of the prior around its mean, and ends by itself where it thinks that it has converged. Of emcee
(Foreman-Mackey et al. 2013), with 2 d + 2 walkers from the prior, the second half is taken. Ours are the rows of
``few_evaluations``.

Needs the extra: pip install -e '.[rivals]'.
"""

import logging
import time
import warnings

import numpy as np

from benchmarks import few_evaluations as few
from benchmarks import harness

BUDGET = 50  # evaluations times d + 2
METHODS = ("emcee", "PyVBMC")
NAMES = tuple(name for name in few.TARGETS if few.TARGETS[name][0] is not few.of_posteriordb)
HEADER = [
    "posterior",
    "d",
    "evaluations",
    "ours",
    *(f"{m}" for m in METHODS),
    "evaluations of PyVBMC",
    "its s",
    "our s",
]
ROWS = harness.Rows(
    harness.BUILD / "few_evaluations_rivals.jsonl", lambda row: (row["name"], row["method"], row["seed"])
)
TABLE = harness.Table("few-evaluations-rivals", HEADER)


class Counted:
    """The log posterior of a target at one place (d,), counted."""

    def __init__(self, costly):
        self.costly, self.count = costly, 0

    def __call__(self, x):
        """Return log prior plus log likelihood."""
        self.count += 1
        row = np.atleast_2d(x)
        return float(self.costly.prior.log_density(row)[0] + self.costly.log_likelihood(row)[0])


def by_emcee(density, prior, most, seed):
    """Return the second half of an ensemble's draws."""
    import emcee

    d, rng = prior.num_dims, np.random.default_rng(seed)
    walkers = 2 * d + 2
    sampler = emcee.EnsembleSampler(walkers, d, density)
    sampler.random_state = np.random.RandomState(seed).get_state()
    steps = most // walkers - 1  # the starts are evaluated, too
    sampler.run_mcmc(prior.draw(rng, walkers), steps)
    return sampler.get_chain(discard=steps // 2, flat=True)


def by_pyvbmc(density, prior, most, seed):
    """Return draws of the variational posterior."""
    from pyvbmc import VBMC

    np.random.seed(seed)  # noqa: NPY002 - its own generator
    d = prior.num_dims
    start = prior.draw(np.random.default_rng(seed), 1)
    bounds = np.full((1, d), prior.mean) + prior.spread * np.array([[-1.0], [1.0]])
    options = {"max_fun_evals": most, "display": "off"}
    found = VBMC(density, start, None, None, bounds[:1], bounds[1:], options=options).optimize()[0]
    return found.sample(few.NUM_DRAWS)[0]


RUNS = {"emcee": by_emcee, "PyVBMC": by_pyvbmc}


def measured(name, method, seed):
    """Return the row of one run."""
    costly, (exact, _) = few.target(name), few.truth(name)
    density = Counted(costly)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = RUNS[method](density, costly.prior, BUDGET * (costly.num_dims + 2), seed)
    seconds = time.perf_counter() - began
    return {
        "name": name,
        "method": method,
        "seed": seed,
        "d": costly.num_dims,
        "evaluations": density.count,
        "distance": few.distance(draws, exact),
        "seconds": seconds,
    }


def main(names=NAMES, methods=METHODS, seeds=2, jobs=1, again=False):
    """Measure what is asked for and has no row yet; write the table, our largest excess first."""
    logging.getLogger("VBMC").setLevel(logging.ERROR)
    for name in names:
        few.truth(name)
    wanted = [
        (name, method, seed) for method in METHODS if method in methods for name in names for seed in range(seeds)
    ]
    ROWS.complete(measured, wanted, lambda row: f"{row['distance']:.3f} {row['evaluations']}", again, jobs)
    ours = {}
    for row in few.ROWS.kept().values():
        if row["noise"] == 0.0:
            ours.setdefault(row["name"], []).append(row["at"][str(BUDGET)])
    table = []
    for name in NAMES:
        rows = {
            method: [r for r in ROWS.kept().values() if (r["name"], r["method"]) == (name, method)]
            for method in METHODS
        }
        if not any(rows.values()):
            continue
        d = few.target(name).num_dims
        median = {m: np.median([r["distance"] for r in found]) if found else np.nan for m, found in rows.items()}
        own = ours.get(name, [])
        vbmc = rows["PyVBMC"]
        values = [np.median([a["distance"] for a in own]) if own else np.nan, *(median[m] for m in METHODS)]
        excess = values[0] - np.nanmin(values[1:])
        cells = [name, d, BUDGET * (d + 2), *("not run" if np.isnan(v) else f"{v:.3f}" for v in values)]
        cells += [f"{np.median([r['evaluations'] for r in vbmc]):.0f}" if vbmc else "not run"]
        cells += [f"{np.median([r['seconds'] for r in vbmc]):.0f}" if vbmc else "not run"]
        cells += [f"{np.median([a['seconds'] for a in own]):.0f}" if own else "not run"]
        table.append((-excess if np.isfinite(excess) else np.inf, cells))
    table.sort(key=lambda pair: pair[0])
    TABLE.write(
        [cells for _, cells in table], below="Medians over seeds. s: the method's own time and its evaluations."
    )


if __name__ == "__main__":
    harness.run(main)
