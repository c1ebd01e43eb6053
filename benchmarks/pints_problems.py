"""Problems of PINTS, which nobody here wrote, by its own distances: ours, PyMC's DEMetropolisZ and PINTS' samplers.

All log densities of ``pints.toy`` (PINTS 0.6.1) but for the two of German credit, whose data it fetches. Those that
PINTS tests its samplers on have the shapes and starts of these functional tests; the others are as they are without
arguments, and their chains start at exact draws, as the annulus's and the cone's do there. Rosenbrock's function has no
finite integral on the plane, and PINTS' mean and covariance are those of the rectangle from (-2, -1) to (4, 12), by
quadrature too: a uniform prior on it stands beside the density here, for all methods. The twisted Gaussian divides its
first coordinate by the root of V = 100 and keeps V for its variance, in the density and in the draws: its standard
deviation is 100, not Haario's 10, and the bend is a hundred times as long.

Ours by default calls: ``pk.sample_khmc(1000, tune=1000)``, four chains, 8,000 evaluations, and
``pk.sample_surrogate()``, at most 500, which begins at PyMC's initial value where there is no prior; "from starts" is
the same from the starts of four chains. The others have 40,000, half of them warm-up: DEMetropolisZ in four chains, the
Haario-Bardenet adaptive sampler, PINTS' default, in four, differential evolution and DREAM in ten as in its functional
tests, or 1.5 d, below which PINTS warns. Every call of the log density counts.

PINTS' distance: a Kullback-Leibler divergence between normal distributions, by mode or of what it untwists, or errors
of mean and variance; of the eight schools it has none. Beside it that of 1,000 independent draws. Right, said and
silent are those of the zoo (``benchmarks.zoo``), from 100,000 exact draws.

Needs the extra: pip install -e '.[rivals-chains]'.
"""

import importlib.util
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

import pymc_kernel as pk
from benchmarks import harness, measures, zoo
from benchmarks.gradient_free import CountedDensity
from benchmarks.posteriors import draws as exact_draws
from benchmarks.posteriors.judge import judge, truth_of

CHAINS, OTHERS = 4, 40_000
NUM_EXACT, NUM_COMPARED = 100_000, 1000
ROSENBROCK = np.array([[-2.0, -1.0], [4.0, 12.0]])


# -- problems -----------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A density of PINTS."""

    make: Callable
    """Module ``pints.toy`` -> the density."""
    start: Callable | None = None
    """(rng, n) -> (n, d); None: exact draws."""
    draw: Callable | None = None
    """(rng, n) -> exact draws (n, d); None: PINTS' own."""
    has_moments: bool = True
    sigma0: tuple | None = None
    """Diagonal of the covariance that PINTS' tests begin with."""
    box: np.ndarray | None = None


def on_a_sphere(rng, radii, d):
    """Return points (n, d) with these distances (n,) from the origin."""
    points = rng.standard_normal((len(radii), d))
    return points * (radii / np.linalg.norm(points, axis=1))[:, None]


def annulus(rng, n):
    """Return draws by rejection: the radius has the density r exp(-(r - 10)^2 / 2)."""
    radii = 10.0 + rng.standard_normal(4 * n)
    kept = radii[rng.uniform(0.0, 20.0, size=radii.size) < radii]  # above 20 is nothing: ten standard deviations
    return on_a_sphere(rng, kept[:n], 2)


def cone(rng, n, power=0.6):
    """Return draws: the radius to the power is gamma distributed; PINTS interpolates its distribution function."""
    return on_a_sphere(rng, rng.gamma(2.0 / power, size=n) ** (1.0 / power), 2)


def rosenbrock(rng, n):
    """Return draws of the density on the rectangle, by rejection from the valley's own: y around x^2."""
    kept = np.empty((0, 2))
    while len(kept) < n:
        x = rng.uniform(-2.0, 4.0, size=8 * n)
        width = np.sqrt(1.0 + (1.0 - x) ** 2) / 10.0  # given x, y is Cauchy with this scale
        y = x**2 + width * rng.standard_cauchy(x.size)
        # The integral over y is pi / (10 sqrt(1 + (1 - x)^2)), at most pi / 10.
        kept = np.concatenate([kept, np.column_stack([x, y])[rng.random(x.size) < 0.1 / width]])
        kept = kept[(kept[:, 1] > -1.0) & (kept[:, 1] < 12.0)]
    return kept[:n]


def schools(rng, n, centered):
    """Return draws of mean, spread and effects, of a grid of the spread."""
    found = exact_draws.eight_schools(rng, n)
    effects = found["theta_trans"]
    if centered:
        effects = found["mu"][:, None] + found["tau"][:, None] * effects
    return np.column_stack([found["mu"], found["tau"], effects])


def uniform(half, d):
    """Return starts of PINTS' tests, (rng, n) -> (n, d)."""
    return lambda rng, n: rng.uniform(-half, half, size=(n, d))


def normal(spread, d):
    """Return starts of PINTS' tests, (rng, n) -> (n, d)."""
    return lambda rng, n: spread * rng.standard_normal((n, d))


MODES = [[0, 0], [5, 10], [10, 0]]
COVARIANCES = [[[1, 0], [0, 1]], [[2, 0.8], [0.8, 3]], [[1, -0.5], [-0.5, 1]]]
_TEN = math.sqrt(10.0)
PROBLEMS = {
    "Gaussian 2": Problem(lambda toy: toy.GaussianLogPDF(mean=[0, 0], sigma=[1, 1]), normal(10.0, 2)),
    "Gaussian 6, correlated": Problem(lambda toy: toy.HighDimensionalGaussianLogPDF(6, 0.8), uniform(4.0, 6)),
    "Gaussian 20": Problem(lambda toy: toy.HighDimensionalGaussianLogPDF(), uniform(4.0, 20)),
    "twisted Gaussian 2": Problem(
        lambda toy: toy.TwistedGaussianLogPDF(dimension=2, b=0.1), normal(_TEN, 2), sigma0=(1.0, 3.0)
    ),
    "twisted Gaussian 10": Problem(lambda toy: toy.TwistedGaussianLogPDF()),
    "annulus 2": Problem(lambda toy: toy.AnnulusLogPDF(), draw=annulus),
    "cone 2": Problem(lambda toy: toy.ConeLogPDF(dimensions=2, beta=0.6), draw=cone),
    "three modes 2": Problem(lambda toy: toy.MultimodalGaussianLogPDF(MODES, COVARIANCES)),
    "egg box 2": Problem(lambda toy: toy.SimpleEggBoxLogPDF(2, 4), uniform(15.0, 2)),
    "Rosenbrock 2": Problem(
        lambda toy: toy.RosenbrockLogPDF(),
        lambda rng, n: rng.uniform(*ROSENBROCK, size=(n, 2)),
        rosenbrock,
        box=ROSENBROCK,
    ),
    "funnel 10": Problem(lambda toy: toy.NealsFunnelLogPDF(), has_moments=False),
    "schools, centered": Problem(lambda toy: toy.EightSchoolsLogPDF(True), draw=partial(schools, centered=True)),
    "schools, non-centered": Problem(lambda toy: toy.EightSchoolsLogPDF(False), draw=partial(schools, centered=False)),
}


@cache
def density_of(name):
    """Return PINTS' density."""
    import pints.toy

    return PROBLEMS[name].make(pints.toy)


def drawn(name, seed, n):
    """Return exact draws (n, d)."""
    if PROBLEMS[name].draw is not None:
        return PROBLEMS[name].draw(np.random.default_rng([seed, 31]), n)
    np.random.seed(seed)  # noqa: NPY002 - its own generator
    return np.asarray(density_of(name).sample(n))


@cache
def truth_about(name):
    """Return moments and quantiles of each coordinate."""
    return truth_of({"x": drawn(name, 10_000, NUM_EXACT)}, PROBLEMS[name].has_moments)


def distance_of(name, draws):
    """Return PINTS' distance of draws (n, d), or NaN where it has none."""
    try:
        with np.errstate(all="ignore"):
            return float(density_of(name).distance(draws))
    except NotImplementedError:
        return math.nan
    except Exception as error:  # of draws that it cannot judge, as of a mode with one draw
        print(f"no distance: {type(error).__name__}: {error}", flush=True)
        return math.inf


@cache
def exact_distance(name):
    """Return PINTS' distance of independent draws, the median over twenty sets."""
    return float(np.median([distance_of(name, drawn(name, seed, NUM_COMPARED)) for seed in range(20)]))


# -- methods ------------------------------------------------------------------------------------------------


def starts_of(name, seed, n):
    """Return where chains start, (n, d)."""
    start = PROBLEMS[name].start
    return drawn(name, 20_000 + seed, n) if start is None else start(np.random.default_rng([seed, 30]), n)


def in_pymc(sample, model, density, name, seed):
    """Return what ``sample(starts, box, seed)`` draws in a model of PyMC."""
    with model:
        return sample(starts_of(name, seed, CHAINS), PROBLEMS[name].box, seed)


def _points(starts):
    return [{"x": x} for x in starts]


def _khmc(starts, box, seed):
    return pk.sample_khmc(1000, tune=1000, initvals=_points(starts), random_seed=seed, progressbar=False)


def _surrogate(starts, box, seed):
    return pk.sample_surrogate(random_seed=seed, progressbar=False)


def _surrogate_from_starts(starts, box, seed):
    # Its places are on the unconstrained scale.
    start = starts if box is None else np.log((starts - box[0]) / (box[1] - starts))
    return pk.sample_surrogate(start=start, random_seed=seed, progressbar=False)


def _differential_evolution(starts, box, seed):
    half = OTHERS // CHAINS // 4  # it evaluates the current place again
    settings = {"chains": CHAINS, "cores": 1, "progressbar": False, "initvals": _points(starts)}
    return pm.sample(half, tune=half, step=pm.DEMetropolisZ(), random_seed=seed, **settings)


def by_pints(method, model, density, name, seed):
    """Return the second half of the draws of a sampler of PINTS."""
    import pints

    class Counted(pints.LogLikelihood):
        def __call__(self, x):
            return density.at(np.asarray(x))

        def n_parameters(self):
            return density_of(name).n_parameters()

    kind, d, box = getattr(pints, method), density_of(name).n_parameters(), PROBLEMS[name].box
    num_chains = CHAINS if method == "HaarioBardenetACMC" else max(10, math.ceil(1.5 * d))
    np.random.seed(seed)  # noqa: NPY002 - its own generator
    target = Counted()
    if box is not None:
        target = pints.LogPosterior(target, pints.UniformLogPrior(*box))
    sigma0 = PROBLEMS[name].sigma0
    sigma0 = None if sigma0 is None else np.diag(sigma0)
    controller = pints.MCMCController(target, num_chains, starts_of(name, seed, num_chains), sigma0, method=kind)
    controller.set_max_iterations(OTHERS // num_chains)
    controller.set_log_to_screen(False)
    chains = controller.run()
    half = chains.shape[1] // 2
    return {"posterior": xr.Dataset({"x": (("chain", "draw", "x_dim_0"), chains[:, half:])})}


METHODS = {
    "sample_khmc": ("pymc_kernel", partial(in_pymc, _khmc)),
    "sample_surrogate": ("pymc_kernel", partial(in_pymc, _surrogate)),
    "sample_surrogate, from starts": ("pymc_kernel", partial(in_pymc, _surrogate_from_starts)),
    "DEMetropolisZ": ("pymc", partial(in_pymc, _differential_evolution)),
    "PINTS, Haario-Bardenet": ("pints", partial(by_pints, "HaarioBardenetACMC")),
    "PINTS, differential evolution": ("pints", partial(by_pints, "DifferentialEvolutionMCMC")),
    "PINTS, DREAM": ("pints", partial(by_pints, "DreamMCMC")),
}
OURS = ("sample_khmc", "sample_surrogate", "sample_surrogate, from starts")


def measured(name, method, seed):
    """Return the row of one run."""
    density, kept = CountedDensity(lambda x: float(density_of(name)(x))), []
    package, call = METHODS[method]

    def make():
        d, box = density_of(name).n_parameters(), PROBLEMS[name].box
        with pm.Model() as model:
            x = pm.Flat("x", shape=d) if box is None else pm.Uniform("x", *box, shape=d)
            pm.Potential("density", density(x))
        return model

    def run(model):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            kept.append(call(model, density, name, seed))
        return kept[-1]

    truth, begun = truth_about(name), time.process_time()
    with np.errstate(all="ignore"):
        row = zoo.measured(make, run, truth, "")
    key = {"problem": name, "method": method, "seed": seed}
    row = key | row | {"processor": round(time.process_time() - begun, 1), "evaluations": density.calls}
    row["version"] = f"{package} {version(package)}"
    summary = row.pop("summary", None)
    if summary is None:
        return row | {"outcome": "said", "worst": "", "error": None, "said": [row["raised"], *row["said"]]}
    found = judge(summary, truth, row["rhat"], row["said"], NUM_EXACT)
    draws = kept[-1]["posterior"]["x"].transpose("chain", "draw", ...).values
    row |= {"outcome": found.outcome, "worst": found.worst, "error": found.error, "said": list(found.said)}
    row["ess"] = measures.smallest_bulk_ess(draws)
    return row | {"distance": distance_of(name, draws.reshape(-1, draws.shape[-1]))}


# -- table --------------------------------------------------------------------------------------------------

ROWS = harness.Rows(harness.ROWS / "pints_problems.jsonl", lambda row: (row["problem"], row["method"], row["seed"]))
HEADER = ("problem and dimensions", "method", "version", "seed", "outcome", "furthest off", "by (sd)", "evaluations")
HEADER += ("R-hat", "effective draws per 1,000 evaluations", "PINTS' distance", "of exact draws", "said", "processor s")
TABLE = harness.Table("pints-problems", HEADER)


def number(value, form):
    """Return a number as a text, nothing for one that there is not."""
    return "" if value is None or math.isnan(value) else form.format(value)


def cells(row):
    """Return a row of the table."""
    said = "; ".join(harness.shortened(word) for word in row["said"] if not word.startswith("R-hat "))
    # Draws of a surrogate are independent, and free: their number says nothing of its error.
    is_of_chains = "ess" in row and not row["method"].startswith("sample_surrogate")
    ess = 1000.0 * row["ess"] / row["evaluations"] if is_of_chains else math.nan
    return [
        row["problem"], row["method"], row["version"], row["seed"], row["outcome"], row["worst"],
        number(row["error"], "{:.2f}"), f"{row['evaluations']:,}", number(row.get("rhat"), "{:.2f}"),
        number(ess, "{:.3g}"), number(row.get("distance"), "{:.3g}"),
        number(exact_distance(row["problem"]), "{:.2g}"), said, f"{row['processor']:.0f}",
    ]  # fmt: skip


def badness(row):
    """Return what rows are sorted by: silent ones first, then those that are furthest off, ours before the others."""
    error = row["error"] if row["error"] is not None else math.inf
    return zoo.OUTCOMES.index(row["outcome"]), row["method"] not in OURS, -error


def counts(rows):
    """Return a line on the outcomes of each method."""
    told = []
    for method in METHODS:
        own = Counter(row["outcome"] for row in rows if row["method"] == method)
        told.append(f"{method}: {own['right']} right, {own['said']} said, {own['silent']} silent")
    return f"Outcomes. {'; '.join(told)}."


def told(row):
    """Return what is printed of a row."""
    error = math.nan if row["error"] is None else row["error"]
    return f"{row['outcome']}, {row['worst']} by {error:.2f} sd, {row['evaluations']} evaluations, {row['processor']} s"


def main(problems=tuple(PROBLEMS), methods=tuple(METHODS), seeds=(1, 2), again=False):
    """Run what has no row yet, and write the table, silent rows first."""
    if importlib.util.find_spec("pints") is None:
        raise SystemExit("this needs PINTS: pip install -e '.[rivals-chains]'")
    wanted = [(name, method, seed) for seed in seeds for name in problems for method in methods]
    rows = [row for row in ROWS.complete(measured, wanted, told, again) if row["problem"] in PROBLEMS]
    if rows:
        rows.sort(key=badness)
        TABLE.write([cells(row) for row in rows], counts(rows))


if __name__ == "__main__":
    harness.run(main)
