"""How many data, or random features, does a score estimate need before the Stein test cannot tell it from the truth?

Kernel exponential families with a Gaussian kernel of length scale one are fitted to draws of a standard normal
distribution, and tested on 500 fresh ones with the scores of the fit (thesis, section 8.3.5, figures 8.8 and 8.9;
uniform base measure, as there). P-values of a perfect fit are uniform: a median of 0.5, one in twenty below 0.05.
"""

import numpy as np

from benchmarks import harness
from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel import stein

KERNEL = K.Gaussian(1.0)
TEST, MANY = 500, 50_000
SETTINGS = {  # estimator, data, features
    ("full", f"{n:,}", ""): (n, S.Full(KERNEL, regularization=1e-3 / np.sqrt(n), base="uniform"))
    for n in (50, 100, 200, 500, 1000, 5000)
} | {
    ("finite", f"{MANY:,}", m): (MANY, S.Finite(KERNEL, num_features=m, regularization=1e-5, base="uniform"))
    for m in (5, 10, 20, 50, 100, 500)
}
TABLE = harness.Table("density", ("estimator", "data", "features", "median p", "p < 0.05"), list(SETTINGS))


def p_value(name, size, features, seed):
    """Return the p-value of 500 fresh draws under the fitted scores."""
    n, estimator = SETTINGS[name, size, features]
    rng = np.random.default_rng([seed, n, features or 0])
    fitted = estimator.fit(rng.standard_normal((n, 1)), rng=rng)
    draws, settings = rng.standard_normal((TEST, 1)), {"thin": 1, "flip_probability": 0.5, "how": "none"}
    return stein.ksd_test(draws, fitted.score(draws), num_replicates=500, rng=rng, **settings).p_value


def cells(p_values):
    """Return what stands behind the settings."""
    return f"{np.median(p_values):.2f}", f"{np.mean(np.array(p_values) < 0.05):.2f}"


SIZES = (50, 100, 200, 500, 1000, 5000, MANY)


def main(repetitions=20, estimators=("full", "finite"), sizes=SIZES, jobs=2):
    keys = [key for key, (n, _) in SETTINGS.items() if key[0] in estimators and n in sizes]
    TABLE.fill(p_value, cells, repetitions, f"{repetitions} repetitions.", keys, jobs)


if __name__ == "__main__":
    harness.run(main)
