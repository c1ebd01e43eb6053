"""Two checks of approximations, on the zoo: our Stein test and PSIS k-hat.

1,000 draws of normal approximations of the unconstrained posterior: ``pm.fit`` with "advi" and "fullrank_advi", and
Laplace's. Their density is known, which k-hat needs and the Stein test does not; k-hat needs no gradient. Ours rejects
at 5 % (``pk.diagnose``); k-hat, by ArviZ (``psislw``), speaks above .7, the bound of Vehtari et al. (2024). Wrong: a
mean, a standard deviation or a quantile is off by more than .3 standard deviations. The two ask different things: a
small k-hat says that importance weights can mend the draws, not that they are right as they are.

Simulation-based calibration (simuk) fits a model anew to hundreds of simulated data sets: it judges a sampler, and no
draws that somebody has, so that it has no row here.

A row is kept in ``benchmarks/rows`` as it is finished, and not run again unless ``--again`` is given.
"""

import logging

import numpy as np
from arviz_stats.base import array_stats

from benchmarks import harness, zoo_draws
from benchmarks.posteriors import ZOO
from benchmarks.zoo_checks import LEVEL, OFF, diagnosed, furthest_off

ROWS = harness.Rows(harness.ROWS / "psis.jsonl", lambda row: (row["model"], row["method"], row["seed"]))
METHODS = ("advi", "fullrank_advi", "laplace")
MOST = 0.7  # k-hat
HEADER = ("model", "approximation", "furthest off", "by (sd)", "ours: p", "k-hat", "ours", "k-hat speaks")
TABLE = harness.Table("psis", HEADER, files=(harness.ZOO,))


def khat(name, method, seed):
    """Return k-hat of the importance weights of 1,000 draws of an approximation."""
    normal = zoo_draws.normal_of(method, name, seed)
    draws = zoo_draws.positions_from(normal, 1000, [seed, 4])
    log_ratios = np.array([zoo_draws.log_density_of(name)(x) for x in draws]) - normal.logpdf(draws)
    return float(array_stats.psislw(-log_ratios)[1])


def run(name, method, seed):
    """Return a row."""
    row = {"model": name, "method": method, "seed": seed}
    try:
        tree = zoo_draws.approximate(method, name, seed)
        found = diagnosed(name, tree)
        row |= {"p": found["p"][0], "khat": khat(name, method, seed)} | furthest_off(name, tree, False)
    except Exception as error:  # no mode, or an approximation that did not converge
        row["raised"] = f"{type(error).__name__}: {error}"
    return row


def told(row):
    """Return what is printed of a row."""
    if "raised" in row:
        return harness.shortened(row["raised"])
    return f"{row['worst']} by {row['off']:.2f} sd; p {row['p']:.3f}, k-hat {row['khat']:.2f}"


def main(models=tuple(name for name in ZOO if name not in zoo_draws.NO_SCORE), methods=METHODS, seed=1, again=False):
    """Run the models that have no row, and write the table."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    wanted = [(name, method, seed) for name in models for method in methods]
    rows = ROWS.complete(run, wanted, told, again)
    failed = [row for row in rows if "raised" in row]
    rows = sorted((row for row in rows if "raised" not in row), key=lambda row: -row["off"])
    wrong = np.array([row["off"] > OFF for row in rows])
    ours, theirs = np.array([[row["p"] <= LEVEL, not row["khat"] <= MOST] for row in rows]).T
    note = (
        f"{wrong.sum()} of {len(rows)} approximations are off by more than {OFF} standard deviations: our test rejects "
        f"{(ours & wrong).sum()} of these, k-hat speaks of {(theirs & wrong).sum()}. Of the {(~wrong).sum()} others: "
        f"{(ours & ~wrong).sum()} and {(theirs & ~wrong).sum()}. {len(failed)} could not be made or tested."
    )
    cells = [
        [
            row["model"], row["method"], row["worst"], f"{row['off']:.2f}", f"{row['p']:.3f}", f"{row['khat']:.2f}",
            "rejects" if own else "", "speaks" if other else "",
        ]
        for row, own, other in zip(rows, ours, theirs, strict=True)
    ]  # fmt: skip
    TABLE.write(cells, note)


if __name__ == "__main__":
    harness.run(main)
