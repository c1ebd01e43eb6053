"""Bayesian bandwidths against the plug-in and cross-validation rules of R's package ks.

These are the rivals of Filippone and Sanguinetti (2011), figures 6 and 7; the package has the Unicef data of figure 7,
too. It needs R with ``ks`` (Debian: ``r-base-core`` and ``r-cran-ks``), which the other benchmarks do not. In one
dimension R bounds the least-squares rule from below by itself.
"""

import shutil
import subprocess
import warnings
from functools import cache

import numpy as np

from benchmarks import harness, measures
from benchmarks.bandwidth import SIZES, bayesian, held_out_by, silverman
from benchmarks.mixtures import DENSITIES, integrated_squared_error
from pymc_kernel.density import BayesianKDE

KS_RULES = ("Hpi", "Hscv", "Hlscv")
_RULES_IN_R = """
x <- as.matrix(read.csv(file("stdin"), header = FALSE))
for (name in c("pi", "scv", "lscv")) {
  h <- if (ncol(x) == 1) get(paste0("h", name))(as.vector(x))^2 else get(paste0("H", name))(x)
  cat(format(as.vector(h), digits = 17), "\\n")
}
"""


def in_r(code, stdin=""):
    """Return the lines that R code prints with ks loaded, as lists of numbers."""
    if shutil.which("Rscript") is None:
        raise RuntimeError("This benchmark needs R with its package ks (Debian: r-base-core, r-cran-ks).")
    command = ["Rscript", "-e", f"suppressMessages(library(ks)); {code}"]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"R failed: {done.stderr.strip()}")
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


def ks_rules(x):
    """Return the covariance of the kernel by each rule of ks; None where it is not positive definite."""
    lines = in_r(_RULES_IN_R, "\n".join(",".join(map(repr, row)) for row in x.tolist()))
    covariances = [np.reshape(line, (x.shape[1], x.shape[1])) for line in lines]
    return {
        rule: covariance if np.linalg.eigvalsh(covariance)[0] > 0 else None
        for rule, covariance in zip(KS_RULES, covariances, strict=True)
    }


@cache
def unicef():
    """Return deaths of children under five for 1,000 births, and life expectancy, of 73 countries, without ties."""
    x = np.array(in_r("data(unicef); for (i in 1:nrow(unicef)) cat(as.numeric(unicef[i, ]), '\\n')"))
    return x + np.random.default_rng(0).random(x.shape) - 0.5


def mean_or_misses(values, times=1.0):
    """Return a cell: the mean over runs in which the rule has a bandwidth, and how many have none."""
    found = [times * value for value in values if value is not None]
    misses = len(values) - len(found)
    cell = measures.plus_minus(found, 2) if len(found) > 1 else "none"
    return f"{cell} (none in {misses})" if misses else cell


ISE_METHODS = ("BayesianKDE", "Silverman", *KS_RULES)
ISE_DENSITIES = [name for name in DENSITIES if not name.endswith("3-d")]  # those of the source; a rule's minute more
ISE_KEYS = [(name, n) for name in ISE_DENSITIES for n in SIZES]
ISE_TABLE = harness.Table("bandwidth-ks", ("density", "n", *ISE_METHODS), ISE_KEYS)


def errors_of_rules(density, n, seed):
    """Return the integrated squared error of our estimate, the rule of thumb and the rules of ks."""
    target = DENSITIES[density]
    x = target.sample(np.random.default_rng([seed, n]), n)
    bandwidths = {"BayesianKDE": bayesian(x), "Silverman": silverman(x), **ks_rules(x)}
    return {rule: None if h is None else integrated_squared_error(target, x, h) for rule, h in bandwidths.items()}


REAL_METHODS = ("BayesianKDE", "BayesianKDE, averaged", "Silverman", *KS_RULES)
REAL_HEADER = ("n", *REAL_METHODS, "our fits that warn")
REAL_TABLE = harness.Table("bandwidth-unicef", REAL_HEADER, [(15,), (25,), (35,), (50,)])


def held_out(n, seed):
    """Return the mean log density of the Unicef countries that are left out, a full precision as in the source."""
    x = unicef() / unicef().std(axis=0)
    order = np.random.default_rng([seed, n]).permutation(len(x))
    train, test = x[order[:n]], x[order[n:]]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit = BayesianKDE("full").fit(train, rng=0)
    bandwidths = {"BayesianKDE": fit.bandwidth, "Silverman": silverman(train), **ks_rules(train)}
    found = {rule: None if h is None else held_out_by(h, train, test) for rule, h in bandwidths.items()}
    return found | {"BayesianKDE, averaged": fit.log_density(test, averaged=True).mean(), "warned": bool(warned)}


def held_out_cells(runs):
    """Return what stands behind n: mean, error and median of each rule, and how many of our fits warn."""
    columns = [[run[rule] for run in runs] for rule in REAL_METHODS]
    medians = [np.median([value for value in column if value is not None]) for column in columns]
    cells = [f"{mean_or_misses(column)}; {median:.2f}" for column, median in zip(columns, medians, strict=True)]
    return *cells, sum(run["warned"] for run in runs)


def ise_cells(runs):
    """Return what stands behind density and n."""
    return [mean_or_misses([run[rule] for run in runs], times=1e3) for rule in ISE_METHODS]


PARTS = ("unicef", "ise")


def main(repetitions=50, parts=PARTS, jobs=2):
    """Cross-validation takes ten seconds for 1,000 points in two dimensions: half an hour in all."""
    if "unicef" in parts:
        note = f"{repetitions} random partitions of 73 countries: mean and its standard error; median."
        REAL_TABLE.fill(held_out, held_out_cells, repetitions, note, jobs=jobs)
    if "ise" in parts:
        note = f"{repetitions} repetitions, times 1,000."
        ISE_TABLE.fill(errors_of_rules, ise_cells, repetitions, note, jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
