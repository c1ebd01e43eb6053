"""Models that nobody has tuned on, two of each class in which answers were once wrong in silence: right, or said?

Default calls. An answer is right if no mean, standard deviation, 5 % or 95 % quantile is off by more than four Monte
Carlo errors and a quarter of a posterior standard deviation (chains that are exact: a tenth); one of
``sample_surrogate``, if the total variation distance of no margin is above .1, its promise, by more than two exact
samples have. It is spoken of where the call warns or logs a warning of ours, where ``pk.diagnose`` warns of a learned
likelihood, or where R-hat is above 1.05. An answer by a learned likelihood that is off by no more than that and twice
the standard error which ``pk.diagnose`` states of means is said by this statement. Of the test of draws, draws are
right or wrong by construction. Seeds from 1,000 on. A row is kept in ``benchmarks/rows`` as it is finished.
"""

import logging
import warnings
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from scipy.special import expit

import pymc_kernel as pk
from benchmarks import few_evaluations, harness
from benchmarks.posteriors.judge import judge, largest_rhat, split_names, summarized
from benchmarks.simulated_problems import Problem, exact_draws, growth
from pymc_kernel.likelihood_free import LearnedLikelihood

FIRST = 1000
NUM_TRUE = 40_000
APPROXIMATE, EXACT = 0.25, 0.1  # posterior standard deviations that an answer may be off
MARGIN = 0.12  # total variation: what is promised, and .02 of the samples themselves
ROWS = harness.Rows(harness.ROWS / "strangers.jsonl", lambda row: (row["class"], row["model"], row["seed"]))
HEADER = (
    "class", "models", "seeds", "answers", "right", "right, but spoken of", "wrong and said", "silent",
    "largest error in silence",
)  # fmt: skip
TABLE = harness.Table("strangers", HEADER)
PERCENTILES = (5, 50, 95)
_OURS = ("KernelHMC", "sample_")


class Answer(NamedTuple):
    """Draws of a sampler, exact ones, and what was said."""

    draws: dict
    """Name -> (chain, draw, ...)."""
    exact: dict
    """Name -> (draw, ...)."""
    said: list
    near: float = APPROXIMATE
    chains_are: str = ""
    stated: float | None = None
    """Standard error of the least known mean, in posterior standard deviations, as it is stated."""


class _Heard(logging.Handler):
    """Keeps what PyMC logs: warnings of steps are said that way."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def quiet(sample, *args, **settings):
    """Return what a sampler returns, and what this package said, warned or logged."""
    heard, log = _Heard(), logging.getLogger("pymc")
    log.addHandler(heard)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = sample(*args, progressbar=False, **settings)
    finally:
        log.removeHandler(heard)
    said = [str(w.message) for w in caught if "site-packages" not in str(w.filename)]
    return found, list(dict.fromkeys(said + [s for s in heard.said if s.startswith(_OURS)]))


def by_margins(answer):
    """Return the columns of a row, by distances between margins."""
    found = few_evaluations.distances(answer.draws["x"].reshape(-1, answer.exact["x"].shape[1]), answer.exact["x"])
    worst = int(np.argmax(found))
    verdict = "right" if found[worst] <= MARGIN else "said" if answer.said else "silent"
    spoken = bool(answer.said)
    return {
        "outcome": verdict,
        "spoken": spoken,
        "error": found[worst],
        "worst": f"x[{worst + 1}]",
        "said": answer.said,
    }


def outcome(answer):
    """Return the columns of a row: right, said or silent; whether it was spoken of; the largest error."""
    draws, truth = {}, {}
    for name, values in answer.draws.items():
        draws |= split_names(name, np.asarray(values, dtype=float))
        exact = np.asarray(answer.exact[name])
        for part, v in split_names(name, exact[None]).items():
            truth[part] = np.array([v.mean(), v.std(), *np.percentile(v, PERCENTILES)])
    summary = summarized(draws, truth, answer.chains_are)
    verdict = judge(summary, truth, largest_rhat(draws), answer.said, len(exact), answer.near)
    is_stated = answer.stated is not None and verdict.error <= answer.near + 2.0 * answer.stated
    return {
        "outcome": "said" if is_stated and verdict.outcome == "silent" else verdict.outcome,
        "spoken": bool(verdict.said),
        "error": verdict.error,
        "worst": verdict.worst,
        "said": list(verdict.said),
        "mean_error": max(float(np.abs(summary[n].estimates[0] - exact[0]) / exact[1]) for n, exact in truth.items()),
        "stated": answer.stated,
    }


def of_grid(rng, log_density, *axes):
    """Return draws (n, d) of a density on a grid, uniform within cells."""
    points = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
    values = log_density(points)
    chances = np.exp(values - values.max())
    cells = points[rng.choice(len(points), NUM_TRUE, p=chances / chances.sum())]
    return cells + rng.uniform(-0.5, 0.5, cells.shape) * [a[1] - a[0] for a in axes]


# -- 15: learned likelihoods as a part of a model, under NUTS -------------------------------------------

_NUTS = {"draws": 300, "tune": 400, "chains": 4, "cores": 1, "compute_convergence_checks": False}
NUM_TO_LEARN = 1000


def learned_answer(model, draws, exact, seed):
    """Return the answer of NUTS, and what ``pk.diagnose`` says of the learned likelihood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, found = pk.diagnose(draws, model=model, show_diagnostics=False, return_diagnostics=True, random_seed=seed)
    (check,) = found["learned"]
    drawn = {name: draws["posterior"][name].values for name in exact}
    return Answer(drawn, exact, check.warnings(), stated=check.least_known[1])


def lifetimes(seed):
    """Sixty lives with one scale, Weibull with shape 1.5, a likelihood of one life learned from 1,000."""
    rng, shape = np.random.default_rng(seed), 1.5
    places = rng.normal(0.0, 1.0, (NUM_TO_LEARN, 1))
    learned = LearnedLikelihood().fit(places, np.exp(places) * rng.weibull(shape, places.shape), rng)
    seen = np.exp(rng.normal(0.0, 0.5)) * rng.weibull(shape, (60, 1))
    with pm.Model() as model:
        scale = pm.Normal("scale", 0.0, 1.0)
        pk.LearnedLikelihood("life", learned, scale, observed=seen)
        draws, said = quiet(pm.sample, random_seed=seed, **_NUTS)

    def log_density(x):
        z = np.log(seen[:, 0]) - x
        return (shape * z - np.exp(shape * z)).sum(axis=1) - 0.5 * x[:, 0] ** 2

    exact = {"scale": of_grid(rng, log_density, np.linspace(-4.0, 4.0, 8001))[:, 0]}
    answer = learned_answer(model, draws, exact, seed)
    return answer._replace(said=answer.said + said)


def hospitals(seed):
    """Means and spreads of eight groups of twenty ages with their own mean and spread, in a hierarchy."""
    rng, size, groups = np.random.default_rng(seed), 20, 8

    def simulated(theta):
        values = theta[:, :1] + np.exp(theta[:, 1:]) * rng.standard_normal((len(theta), size))
        return np.column_stack([values.mean(axis=1), values.std(axis=1, ddof=1)])

    places = np.column_stack([rng.normal(0.0, 1.5, NUM_TO_LEARN), rng.normal(0.0, 0.7, NUM_TO_LEARN)])
    learned = LearnedLikelihood().fit(places, simulated(places), rng)
    seen = simulated(np.column_stack([rng.normal(0.3, 0.7, groups), rng.normal(-0.2, 0.3, groups)]))
    answers = []
    for is_learned in (True, False):
        with pm.Model() as model:
            center, log_spread = pm.Normal("center", 0.0, 1.0), pm.Normal("log_spread", 0.0, 0.5)
            mean = center + 0.7 * pm.Normal("effect", 0.0, 1.0, shape=groups)
            log_sd = log_spread + 0.3 * pm.Normal("sd_effect", 0.0, 1.0, shape=groups)
            if is_learned:
                pk.LearnedLikelihood("age", learned, mean, log_sd, observed=seen)
                learned_model = model
            else:
                squares = (size - 1) * seen[:, 1] ** 2 + size * (seen[:, 0] - mean) ** 2
                pm.Potential("age", (-size * log_sd - 0.5 * squares * pt.exp(-2.0 * log_sd)).sum())
            settings = _NUTS if is_learned else _NUTS | {"draws": 1000}
            answers.append(quiet(pm.sample, random_seed=seed, **settings))
    (draws, said), (true, _) = answers
    exact = {n: true["posterior"][n].values.reshape(4_000, *v.shape[2:]) for n, v in true["posterior"].items()}
    answer = learned_answer(learned_model, draws, exact, seed)
    return answer._replace(said=answer.said + said)


# -- 16: posteriors of data that say little ---------------------------------------------------------------


def answered(sample, model, seed, exact):
    """Return the answer of a sampler that learns from simulations, beside exact draws (draw, ...) of each name."""
    found, said = quiet(sample, model=model, random_seed=seed)
    return Answer({name: found["posterior"][name].values for name in exact}, exact, said, chains_are="replicates")


def likelihood_free(seed, scales, simulate, log_density, seen):
    """Return the answer of ``pk.sample_likelihood_free``; parameters are normal with these standard deviations."""
    scales, seen = np.array(scales), np.array(seen, dtype=float)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, scales)
        pm.Simulator("y", lambda rng, theta, size: simulate(rng, theta), theta, observed=seen)
    axes = [np.linspace(-5.0 * s, 5.0 * s, 1001) for s in scales]
    exact = of_grid(
        np.random.default_rng(seed), lambda x: log_density(x, seen) - 0.5 * ((x / scales) ** 2).sum(axis=1), *axes
    )
    return answered(pk.sample_likelihood_free, model, seed, {"theta": exact})


def recapture(seed):
    """Three of a hundred animals caught, none of them again: little is known of whether they avoid the trap."""

    def simulate(rng, theta):
        caught = rng.binomial(100, expit(theta[0] - 2.0))
        return np.array([caught, rng.binomial(caught, expit(theta[0] - 2.0 + theta[1]))], dtype=float)

    def log_density(x, seen):
        first = stats.binom.logpmf(seen[0], 100, expit(x[:, 0] - 2.0))
        return first + stats.binom.logpmf(seen[1], seen[0], expit(x.sum(axis=1) - 2.0))

    return likelihood_free(seed, (1.0, 1.0), simulate, log_density, (3.0, 0.0))


def one_delay(seed):
    """One delay of an inverse normal distribution with unknown mean and shape."""

    def simulate(rng, theta):
        return rng.wald(np.exp(theta[:1]), np.exp(theta[1]))

    def log_density(x, seen):
        mean, shape = np.exp(x[:, 0]), np.exp(x[:, 1])
        return 0.5 * x[:, 1] - 0.5 * shape * (seen[0] - mean) ** 2 / (mean**2 * seen[0])

    return likelihood_free(seed, (0.8, 1.0), simulate, log_density, (0.4,))


# -- 17: summaries that are taken for normal ----------------------------------------------------------------


def synthetic(seed, simulate, log_density, truth):
    """Return the answer of ``pk.sample_khmc`` on a synthetic likelihood of data from ``truth``."""
    rng = np.random.default_rng(seed)
    seen = simulate(rng, truth, 1)[:, None][0]
    with pm.Model():
        theta = pm.Normal("theta", 0.0, 1.0)
        pk.SyntheticLikelihood("y", lambda rng, theta, size: simulate(rng, theta, 1), theta, observed=seen)
        found, said = quiet(pk.sample_khmc, draws=500, tune=500, cores=1, random_seed=seed)
    exact = of_grid(rng, lambda x: log_density(x[:, 0], seen[0]) - 0.5 * x[:, 0] ** 2, np.linspace(-6.0, 6.0, 6001))
    return Answer({"theta": found["posterior"]["theta"].values}, {"theta": exact[:, 0]}, said)


def first_of_ten(seed):
    """The first of ten waiting times, whose log mean is unknown."""
    return synthetic(
        seed,
        lambda rng, theta, n: np.exp(theta) * rng.exponential(size=(n, 10)).min(axis=1),
        lambda x, seen: -x - 10.0 * seen * np.exp(-x),
        np.random.default_rng([seed, 1]).normal(0.0, 0.5),
    )


def rare_events(seed):
    """A count whose mean is about one."""
    return synthetic(
        seed,
        lambda rng, theta, n: rng.poisson(np.exp(theta), n).astype(float),
        lambda x, seen: seen * x - np.exp(x),
        np.random.default_rng([seed, 1]).normal(0.0, 0.5),
    )


# -- 18: many summaries that bend with the parameters -----------------------------------------------------------


def oscillation(rng):
    """Nine noisy times of an oscillation that dies away: amplitude, frequency, damping."""
    times, noise = np.linspace(0.5, 6.0, 9), rng.uniform(0.1, 0.2)

    def means(z):
        amplitude, frequency, damping = np.exp(np.array([0.3, 0.25, 0.5]) * z + [0.0, 0.5, -1.5]).T[:, :, None]
        return amplitude * np.exp(-damping * times) * np.cos(frequency * times)

    def simulate(rng, z):
        return means(z) + noise * rng.standard_normal((len(z), len(times)))

    return Problem(3, simulate, lambda z, x: -0.5 * (((x - means(z)) / noise) ** 2).sum(axis=1))


def kernel_bayes(seed, family):
    """Return the answer of ``pk.sample_kbr``."""
    rng = np.random.default_rng(seed)
    problem = family(rng)
    seen = problem.simulate(rng, rng.standard_normal((1, problem.width)))[0]
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=problem.width)
        pm.Simulator("y", lambda rng, theta, size: problem.simulate(rng, theta[None])[0], theta, observed=seen)
    return answered(pk.sample_kbr, model, seed, {"theta": exact_draws(problem, seen, rng)})


# -- 23: priors with long tails -----------------------------------------------------------------------------


def location_and_scale(seed, sample):
    """Mean and log standard deviation of twenty normal numbers; Cauchy priors of width 5 of location and scale."""

    def simulate(rng, location, scale, size):
        values = rng.normal(location, scale, 20)
        return np.array([values.mean(), np.log(values.std())])

    def log_density(x):
        location, log_scale = x.T
        scale = np.exp(log_scale)
        prior = stats.cauchy.logpdf(location, 0.0, 5.0) + stats.cauchy.logpdf(scale, 0.0, 5.0) + log_scale
        squares = 20.0 * np.exp(2.0 * (seen[1] - log_scale))
        of_spread = stats.chi2.logpdf(squares, 19) + np.log(squares)
        return prior + stats.norm.logpdf(seen[0], location, scale / 20**0.5) + of_spread

    rng = np.random.default_rng(seed)
    seen = simulate(rng, rng.normal(0.0, 5.0), np.exp(rng.normal(1.0, 0.5)), None)
    with pm.Model() as model:
        location, scale = pm.Cauchy("location", 0.0, 5.0), pm.HalfCauchy("scale", 5.0)
        pm.Simulator("y", simulate, location, scale, observed=seen)
    width = np.exp(seen[1])
    axes = seen[0] + width * np.linspace(-3.0, 3.0, 1001), seen[1] + np.linspace(-1.2, 1.8, 1001)
    exact = of_grid(rng, log_density, *axes)
    return answered(sample, model, seed, {"location": exact[:, 0], "scale": np.exp(exact[:, 1])})


def rate(seed, sample):
    """Ten Poisson counts whose rate has a half-Cauchy prior of width 10."""

    def simulate(rng, rate, size):
        return rng.poisson(min(rate, 1e15), 10).sum().astype(float)[None]

    rng = np.random.default_rng(seed)
    seen = simulate(rng, np.exp(rng.normal(1.5, 1.0)), None)
    with pm.Model() as model:
        pm.Simulator("y", simulate, pm.HalfCauchy("rate", 10.0), observed=seen)
    ends = np.log(stats.gamma.ppf([1e-9, 1.0 - 1e-9], seen[0] + 1.0, scale=0.1))

    def log_density(x):
        value = np.exp(x[:, 0])
        return stats.poisson.logpmf(seen[0], 10.0 * value) + stats.cauchy.logpdf(value, 0.0, 10.0) + x[:, 0]

    exact = np.exp(of_grid(rng, log_density, np.linspace(*ends, 4001))[:, 0])
    return answered(sample, model, seed, {"rate": exact})


# -- 19 and 22: densities with a formula ----------------------------------------------------------------------------


def of_density(sample, seed, log_density, exact, near, **settings):
    """Return the answer of a sampler on a density, not normalized, that a normal prior of spread 10 does not change."""
    d = exact.shape[1]
    with pm.Model():
        x = pm.Normal("x", 0.0, 10.0, shape=d)
        pm.Potential("rest", log_density(x) + (x**2).sum() / 200.0)
        found, said = quiet(sample, random_seed=seed, **settings)
    return Answer({"x": found["posterior"]["x"].values}, {"x": exact}, said, near)


def one_long_tail(seed):
    """Six normal parameters, and the logarithm of a gamma variable of shape .3, all seen in two sums."""
    rng, d = np.random.default_rng(seed), 7
    turn = np.linalg.qr(rng.standard_normal((d - 1, d - 1)))[0] * rng.uniform(0.3, 1.0, d - 1)
    exact = np.column_stack([rng.standard_normal((NUM_TRUE, d - 1)) @ turn.T, np.log(rng.gamma(0.3, size=NUM_TRUE))])
    precision = np.linalg.inv(turn @ turn.T)
    return of_density(
        pk.sample_surrogate,
        seed,
        lambda x: -0.5 * x[:-1] @ precision @ x[:-1] + 0.3 * x[-1] - pt.exp(x[-1]),
        exact,
        APPROXIMATE,
    )


def one_of_two_humps(seed):
    """Six parameters with Student's tails, and one with a lesser hump beside the main one."""
    rng, d, freedom = np.random.default_rng(seed), 7, 5.0
    place, share = rng.uniform(3.0, 4.0), rng.uniform(0.2, 0.4)
    humps = np.where(rng.random(NUM_TRUE) < share, place, 0.0) + rng.standard_normal(NUM_TRUE)
    exact = np.column_stack([rng.standard_t(freedom, (NUM_TRUE, d - 1)), humps])
    logs = np.log([1.0 - share, share])

    def log_density(x):
        tails = -0.5 * (freedom + 1.0) * pt.log1p(x[:-1] ** 2 / freedom).sum()
        return tails + pt.logaddexp(logs[0] - 0.5 * x[-1] ** 2, logs[1] - 0.5 * (x[-1] - place) ** 2)

    return of_density(pk.sample_surrogate, seed, log_density, exact, APPROXIMATE)


def snake(seed):
    """A ridge that winds: a sine of ten times its width."""
    z = np.random.default_rng(seed).standard_normal((NUM_TRUE, 3)) * [30.0, 1.0, 1.0]
    z[:, 1] += 10.0 * np.sin(z[:, 0] / 10.0)

    def log_density(x):
        return -0.5 * ((x[0] / 30.0) ** 2 + (x[1] - 10.0 * pt.sin(x[0] / 10.0)) ** 2 + x[2] ** 2)

    return of_density(pk.sample_khmc, seed, log_density, z, EXACT, cores=1)


def cubic(seed):
    """A ridge in five dimensions that bends as a third power."""
    z = np.random.default_rng(seed).standard_normal((NUM_TRUE, 5)) * [40.0, 1.0, 1.0, 1.0, 1.0]
    z[:, 1] += (z[:, 0] / 20.0) ** 3

    def log_density(x):
        return -0.5 * ((x[0] / 40.0) ** 2 + (x[1] - (x[0] / 20.0) ** 3) ** 2 + (x[2:] ** 2).sum())

    return of_density(pk.sample_khmc, seed, log_density, z, EXACT, cores=1)


def egg_box(seed):
    """Four normals of variance two at (+-8, +-8), as PINTS has them (``toy.SimpleEggBoxLogPDF``)."""
    rng = np.random.default_rng(seed)
    z = 8.0 * rng.choice([-1.0, 1.0], (NUM_TRUE, 2)) + np.sqrt(2.0) * rng.standard_normal((NUM_TRUE, 2))

    def log_density(x):
        return pt.logaddexp(-((x - 8.0) ** 2) / 4.0, -((x + 8.0) ** 2) / 4.0).sum()

    return of_density(pk.sample_khmc, seed, log_density, z, EXACT, cores=1)


def rosenbrock(seed):
    """One over one plus Rosenbrock's function of PINTS, which has no integral, under a normal prior of spread 10."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-9.0, 9.0, 3001)[:, None]
    angle = (np.arange(2000) + 0.5) / 2000 * np.pi - 0.5 * np.pi
    width = np.sqrt((1.0 + (1.0 - x) ** 2) / 100.0)
    y = x**2 + width * np.tan(angle)
    # The density by the angle: 1 / (1 + tan^2) of Rosenbrock's, times that of the substitution, is one over the width.
    values = -np.log(width) - (x**2 + y**2) / 200.0
    chances = np.exp(values - values.max()).ravel()
    cells = rng.choice(chances.size, NUM_TRUE, p=chances / chances.sum())
    exact = np.column_stack([np.broadcast_to(x, y.shape).ravel()[cells], y.ravel()[cells]])

    def log_density(x):
        return -pt.log1p((1.0 - x[0]) ** 2 + 100.0 * (x[1] - x[0] ** 2) ** 2) - (x**2).sum() / 200.0

    return of_density(pk.sample_khmc, seed, log_density, exact, EXACT, cores=1)


def thin_ridge(seed):
    """A parabola with waves, of a width of a twentieth and at an angle to all coordinates."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((4, 4)))[0]
    z = rng.standard_normal((NUM_TRUE, 4)) * [1.0, 0.05, 0.05, 1.0]
    z[:, 1] += 2.0 * z[:, 0] ** 2
    z[:, 2] += np.sin(3.0 * z[:, 0])

    def log_density(x):
        u = turn.T @ x
        across = ((u[1] - 2.0 * u[0] ** 2) / 0.05) ** 2 + ((u[2] - pt.sin(3.0 * u[0])) / 0.05) ** 2
        return -0.5 * (u[0] ** 2 + across + u[3] ** 2)

    return of_density(pk.sample_khmc, seed, log_density, z @ turn.T, EXACT, cores=1)


def narrow_in_broad(seed):
    """Two normals of one center in four dimensions, of spreads .03 and 1, with half of the mass each."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((NUM_TRUE, 4)) * np.where(rng.random((NUM_TRUE, 1)) < 0.5, 1.0, 0.03)

    def log_density(x):
        squared = (x**2).sum()
        return pt.logaddexp(-0.5 * squared, -0.5 * squared / 0.03**2 - 4.0 * np.log(0.03))

    return of_density(pk.sample_khmc, seed, log_density, z, EXACT, cores=1)


def correlated(seed):
    """A normal distribution in 20 dimensions with correlations of .99 and scales of .01 to 10."""
    scales = np.logspace(-2.0, 1.0, 20)
    covariance = (0.99 + 0.01 * np.eye(20)) * np.outer(scales, scales)
    precision = np.linalg.inv(covariance)
    z = np.random.default_rng(seed).multivariate_normal(np.zeros(20), covariance, NUM_TRUE)

    def log_density(x):
        return -0.5 * x @ precision @ x

    return of_density(pk.sample_khmc, seed, log_density, z, EXACT, cores=1)


# -- 21: the test of draws --------------------------------------------------------------------------------------------


def tested(model, name, draws, seed, is_wrong):
    """Return the columns of a row, of one test of draws (n, d) that are right or wrong by construction."""
    idata = az.from_dict({"posterior": {name: draws.reshape(4, -1, draws.shape[1])}})
    report = pk.ksd_test(idata, model=model, random_seed=seed)
    spoken = report.p_value < 0.05
    verdict = "right" if not is_wrong else "said" if spoken else "silent"
    return {"outcome": verdict, "spoken": bool(spoken), "error": float(is_wrong), "worst": "", "said": []}


def one_scale(seed, is_wrong):
    """2,000 draws of 25 correlated normal variables; or one of them with .88 of its spread."""
    rng, d = np.random.default_rng(seed), 25
    root = np.eye(d) + 0.15 * rng.standard_normal((d, d)) / np.sqrt(d)
    covariance = root @ root.T
    draws = rng.multivariate_normal(np.zeros(d), covariance, 2000)
    if is_wrong:
        draws[:, rng.integers(d)] *= 0.88
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(d), covariance)
    return tested(model, "x", draws, seed, is_wrong)


def repeated(seed, is_wrong):
    """Draws of eight Student variables from ones 1.1 times as wide, resampled by importance; or without weights."""
    rng, d, freedom = np.random.default_rng(seed), 8, 6.0
    proposed = 1.1 * rng.standard_t(freedom, (4000, d))
    weights = np.exp((stats.t(freedom).logpdf(proposed) - stats.t(freedom, scale=1.1).logpdf(proposed)).sum(axis=1))
    weights = np.full(4000, 1.0 / 4000) if is_wrong else weights / weights.sum()
    draws = proposed[rng.choice(4000, 4000, p=weights)]
    with pm.Model() as model:
        pm.StudentT("x", nu=freedom, shape=d)
    return tested(model, "x", draws, seed, is_wrong)


SURROGATE = "19 one margin of seven, sample_surrogate"
CLASSES = {
    "15 learned likelihoods under NUTS": {"lifetimes": lifetimes, "hospitals": hospitals},
    "16 data that say little": {"recapture": recapture, "one delay": one_delay},
    "17 summaries taken for normal": {"first of ten": first_of_ten, "rare events": rare_events},
    "18 many bent summaries, sample_kbr": {
        "oscillation": lambda seed: kernel_bayes(seed, oscillation),
        "growth": lambda seed: kernel_bayes(seed, growth),
    },
    SURROGATE: {"long tail": one_long_tail, "two humps": one_of_two_humps},
    "21 test of draws": {
        f"{name}, {'wrong' if is_wrong else 'right'}": lambda seed, make=make, is_wrong=is_wrong: make(seed, is_wrong)
        for name, make in (("one scale", one_scale), ("repeats", repeated))
        for is_wrong in (False, True)
    },
    "22 long ridges, sample_khmc": {"snake": snake, "cubic": cubic},
    "22 of PINTS, sample_khmc": {"egg box": egg_box, "Rosenbrock": rosenbrock},
    **{
        f"23 priors with long tails, {sample.__name__}": {
            "location and scale": lambda seed, sample=sample: location_and_scale(seed, sample),
            "rate": lambda seed, sample=sample: rate(seed, sample),
        }
        for sample in (pk.sample_likelihood_free, pk.sample_kbr, pk.sample_abc)
    },
    "24 thin, narrow, correlated, sample_khmc": {
        "thin ridge": thin_ridge,
        "narrow in broad": narrow_in_broad,
        "correlated": correlated,
    },
}


def run(group, model, seed):
    """Return the row of one answer."""
    logging.getLogger("pymc").setLevel(logging.WARNING)
    found = CLASSES[group][model](seed)
    if isinstance(found, Answer):
        found = by_margins(found) if group == SURROGATE else outcome(found)
    return {"class": group, "model": model, "seed": seed, **found}


def cells(group, rows):
    """Return a line of the table."""
    right = [r for r in rows if r["outcome"] == "right"]
    silent = [r["error"] for r in rows if r["outcome"] == "silent"]
    counts = [sum(r["outcome"] == kind for r in rows) for kind in ("said", "silent")]
    models = sorted({r["model"].split(",")[0] for r in rows})
    seeds = len({r["seed"] for r in rows})
    largest = f"{max(silent):.2f}" if silent and not group.startswith("21") else None
    return [group, ", ".join(models), seeds, len(rows), len(right), sum(r["spoken"] for r in right), *counts, largest]


def note(rows):
    """Return how large errors of learned likelihoods are beside what is stated of them."""
    found = []
    for model in sorted({r["model"] for r in rows if r.get("stated") is not None}):
        own = [r for r in rows if r["model"] == model and not any(s.startswith("R-hat") for s in r["said"])]
        off, stated = (np.sqrt(np.mean([r[key] ** 2 for r in own])) for key in ("mean_error", "stated"))
        found.append(f"{model} {off:.2f} and {stated:.2f}")
    by_number = sum(r["outcome"] == "said" and not r["spoken"] for r in rows if r.get("stated") is not None)
    return (
        "Largest error: in posterior standard deviations, of a mean, standard deviation or quantile. Learned "
        "likelihoods: the largest error of a mean, and the standard error that is stated of the least known one, root "
        f"mean squares over the chains that met: {', '.join(found)}. {by_number} of the wrong ones are said by this "
        "number alone."
    )


def main(repetitions=10, classes=tuple(CLASSES), again=False, jobs=1):
    seeds = range(FIRST, FIRST + repetitions)
    tasks = [(group, model, seed) for seed in seeds for group in classes for model in CLASSES[group]]
    rows = ROWS.complete(
        run,
        tasks,
        lambda r: f"{r['outcome']}, {r['error']:.2f} {r['worst']} {[s[:60] for s in r['said']]}",
        again,
        jobs,
    )
    groups = {group: [r for r in rows if r["class"] == group] for group in CLASSES}
    print(TABLE.write([cells(group, own) for group, own in groups.items() if own], note(rows)))


if __name__ == "__main__":
    harness.run(main)
