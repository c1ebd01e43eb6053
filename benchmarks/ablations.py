"""Which mechanisms earn their lines: outcomes with and without each of them, on problems that a seed draws.

A part of the package is a function of its own in ``PARTS``. Each of its mechanisms is one patch: a name of a module,
and what stands in its place when the mechanism is off. With and without run on the same problems; a mechanism that does
not help by two standard errors of the difference in some row goes. Seeds below 1,000 are for development.

``stein``: exact draws from a distribution whose scores are known, the same draws with a fault, and how often a test of
all coordinates at 5 % rejects them. Families: correlated normals, tails on one side, Student t, scales that depend on
another coordinate (one for many, one for each, both), bananas, close mixtures. Faults: a tail cut off, a spread or a
place a little wrong, a dependence lost.

``khmc`` and ``particles``: posteriors of ``benchmarks/posteriors/drawn.py``. The first is ``sample_khmc`` with two
chains of 500 draws, the second tempered particles, four populations of 250, with the moves named. Of each: the shares
of answers that are right and that are silent by the judge of the zoo; the largest error, in posterior standard
deviations, of means, standard deviations and quantiles; the smallest bulk effective size for 1,000 evaluations; seconds
of processor time. The last three are compared by their logarithms: geometric means with and without, and the mean
difference of natural logarithms. ``burn-in`` is a regression from fifty standard deviations away. Curved are the
families in ``CURVED``, where a normal approximation is poor; modes are apart in the families ``pair`` and ``apart``.

``missed``: whether places of a search for a start are told as missed by a thousand exact draws of these posteriors, or
by the half of them on one side (the first is a false alarm, and of the second more is better).

``evidence``: the error of the log evidence by 500 particles that walk, a root mean square over six runs, and their
evaluations: mixtures and rings of the same drawn posteriors, and normal distributions in ten and twenty dimensions.

``likelihood``: ``LearnedLikelihood`` from 1,000 simulations of the prior, on the simulators of
``benchmarks/simulated_problems.py`` and of the community (``benchmarks/sbibm_tasks.py``): its mean log density of 500
more, the error of the log likelihood of one observation (a standard deviation in nats over exact posterior draws; not
for those of the community), and seconds of processor time.

``outputs``: what ``pk.emulate`` learns of a black box from given places, most of them draws of the prior, others of a
posterior twice as wide. Solvers with 40 outputs (sums of exponentials, oscillations, growth; four to six inputs): the
root mean square error at draws of a normal approximation to the posterior, in units of the noise of the data. Log
likelihoods: those of the drawn posteriors, an error in nats (a standard deviation).

``rounds``: ``sample_likelihood_free`` by default, judged as the drawn posteriors are, on the same simulators, and where
the data are one small count, so that many simulations give just these.

``search``: what ``pk.emulate`` and ``sample_surrogate`` evaluate and draw, on log likelihoods and outputs: modes apart
(``benchmarks/learned_modes.py``), tails (``benchmarks/learned_tails.py``), two models of
``benchmarks/learned_parts.py``, normal posteriors beside ``pm.Flat``, and the drawn posteriors by ``sample_surrogate``
with 50 (d + 2) evaluations at most.
Of each: right, silent, error (of the mass below exact quantiles; of parts and drawn posteriors in posterior standard
deviations), how many evaluations were made, and seconds of processor time.
"""

import contextlib
import time
import warnings
from functools import partial
from unittest import mock

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor import wrap_py
from scipy import stats
from scipy.cluster.vq import kmeans2
from scipy.special import expit

import pymc_kernel as pk
from benchmarks import fresh, harness, learned_modes, learned_parts, learned_tails, measures, zoo
from benchmarks.learned_parts import STUCK
from benchmarks.measures import smallest_bulk_ess
from benchmarks.posteriors.drawn import drawn
from benchmarks.posteriors.judge import compared, judge
from benchmarks.sbibm_tasks import PLAIN, TASKS
from benchmarks.simulated_problems import MATCHED, exact_draws, problem_of
from benchmarks.targets import linear_regression
from pymc_kernel import smc, stein
from pymc_kernel.emulation import fit_outputs
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.likelihood_free.learned_likelihood import choices, residuals
from pymc_kernel.likelihood_free.learned_likelihood.features import ParameterMap
from pymc_kernel.likelihood_free.learned_likelihood.summaries import SummaryMap
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import KnownPlaces, missed
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import ModelPrior, prior_draws
from pymc_kernel.plugin.model.unconstrained import constrained_draws, unconstrained_draws
from pymc_kernel.smc import moves

# -- Stein: draws to be judged ---------------------------------------------------------------------------


def _mixed(rng, draws, scores):
    """Return draws and scores after a random linear map that leaves coordinates recognizable."""
    d = draws.shape[1]
    matrix = np.diag(np.exp(rng.normal(size=d))) @ (np.eye(d) + rng.uniform(0.0, 0.5) * rng.normal(size=(d, d)) / d)
    return draws @ matrix.T, scores @ np.linalg.inv(matrix)


def _normal(rng, n):
    draws = rng.standard_normal((n, rng.integers(1, 9)))
    return _mixed(rng, draws, -draws)


def _skew(rng, n):
    """Return logarithms of gamma variables."""
    shapes, signs = rng.uniform(0.3, 4.0, size=rng.integers(1, 7)), rng.choice([-1.0, 1.0])
    gammas = np.maximum(rng.gamma(shapes, size=(n, len(shapes))), 1e-200)
    return _mixed(rng, signs * np.log(gammas), signs * (shapes - gammas))


def _heavy(rng, n):
    d, degrees = rng.integers(1, 7), rng.uniform(3.0, 10.0)
    draws = rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(degrees, size=(n, 1)) / degrees)
    return _mixed(rng, draws, -(degrees + d) * draws / (degrees + (draws**2).sum(axis=1, keepdims=True)))


def _funnel(rng, n):
    """Return a log scale, a mean and effects around it with that scale."""
    spread, k = rng.uniform(0.3, 2.0), rng.integers(2, 9)
    log_scale, mean = spread * rng.standard_normal((n, 1)), rng.standard_normal((n, 1))
    unit = rng.standard_normal((n, k))
    pull = -unit / np.exp(log_scale)
    down = -log_scale / spread**2 + (unit**2 - 1.0).sum(axis=1, keepdims=True)
    draws = np.hstack([log_scale, mean, mean + np.exp(log_scale) * unit])
    return draws, np.hstack([down, -mean - pull.sum(axis=1, keepdims=True), pull])


def _horseshoe(rng, n):
    """Return coefficients with a log scale each, around a common one."""
    k, spread, common = rng.integers(1, 5), rng.uniform(0.3, 1.6), rng.uniform(0.0, 1.2)
    top = common * rng.standard_normal((n, 1))
    off, unit = spread * rng.standard_normal((n, k)), rng.standard_normal((n, k))
    logs = top + off
    down = -off / spread**2 + unit**2 - 1.0
    draws, scores = [logs, np.exp(logs) * unit], [down, -unit / np.exp(logs)]
    if common > 0.2:
        draws.append(top)
        scores.append((off / spread**2).sum(axis=1, keepdims=True) - top / common**2)
    return np.hstack(draws), np.hstack(scores)


def _banana(rng, n):
    bend, d = rng.uniform(0.1, 0.8), rng.integers(2, 6)
    unit = rng.standard_normal((n, d))
    draws, scores = unit.copy(), -unit
    draws[:, 1] += bend * (unit[:, 0] ** 2 - 1.0)
    scores[:, 0] -= 2.0 * bend * unit[:, 0] * scores[:, 1]
    return draws, scores


def _mixture(rng, n):
    d, weight = rng.integers(1, 6), rng.uniform(0.2, 0.8)
    apart = rng.uniform(1.0, 2.5) * np.eye(d)[0]
    draws = rng.standard_normal((n, d)) + np.where(rng.random((n, 1)) < weight, apart, -apart)
    upper = 1.0 / (1.0 + (1.0 / weight - 1.0) * np.exp(-2.0 * draws @ apart))[:, None]
    return _mixed(rng, draws, upper * apart - (1.0 - upper) * apart - draws)


FAMILIES = {f.__name__[1:]: f for f in (_normal, _skew, _heavy, _funnel, _horseshoe, _banana, _mixture)}


def _cut(rng, draws, scores):
    column, share = draws[:, rng.integers(draws.shape[1])], rng.uniform(0.03, 0.15)
    kept = column > np.quantile(column, share) if rng.random() < 0.5 else column < np.quantile(column, 1.0 - share)
    return draws[kept], scores[kept]


def stein_problem(family: str, seed: int):
    """Return exact draws and their scores, and the same with one fault."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    n = int(rng.integers(300, 1001))
    draws, scores = FAMILIES[family](rng, n)
    k, size = rng.integers(draws.shape[1]), rng.choice([-1.0, 1.0]) * rng.uniform(0.08, 0.2)
    kind = rng.integers(4 if draws.shape[1] > 1 else 3)
    if kind == 0:
        return (draws, scores), _cut(rng, draws, scores)
    moved, pulled = draws.copy(), scores.copy()
    if kind == 1:
        moved[:, k] += size * (draws[:, k] - draws[:, k].mean())
    elif kind == 2:
        moved[:, k] += 1.5 * size * draws[:, k].std()
    else:  # scores of these draws would be others; those of the old place are wrong in the same way
        rows = rng.permutation(n)[: int(rng.uniform(0.2, 0.6) * n)]
        moved[rows, k] = moved[np.roll(rows, 1), k]
    return (draws, scores), (moved, pulled)


#: Mechanism -> what stands in place of names of modules when it is off.
STEIN = {
    "straightening": {"stein.draws.straighten": lambda draws, scores: (draws, scores)},
    "margins": {"stein.draws.normal_margins": lambda draws, scores: (draws, scores)},
}


def stein_outcome(family, name, seed):
    """Return whether a test rejects the right draws and the wrong ones, with the mechanism and without it."""
    settings = {"thin": 1, "flip_probability": 0.5, "num_replicates": 200, "coordinates": True}
    right, wrong = stein_problem(family, seed)
    found = []
    for patches in ({}, STEIN[name]):
        with _without(patches):
            found.append([stein.ksd_test(*one, **settings).p_value <= 0.05 for one in (right, wrong)])
    return np.array(found, dtype=float)


def stein_rows(first, repetitions, jobs):
    """Yield rows: of wrong draws by family, how many are rejected; of right ones of all families, how many are."""
    for name in STEIN:
        all_found = []
        for family in FAMILIES:
            seeds = range(first, first + repetitions)
            found = np.array(list(harness.results(stein_outcome, [(family, name, s) for s in seeds], jobs)))
            all_found.append(found)
            yield _row(name, f"wrong draws, {family}", found[:, :, 1])
        yield _row(name, "right draws", np.concatenate(all_found)[:, :, 0])


def _row(name, problems, outcomes, are_logs=False):
    """Return a row from outcomes (n, 2), with and without, of the same problems."""
    n, (on, off) = len(outcomes), outcomes.mean(axis=0)
    error = (outcomes[:, 0] - outcomes[:, 1]).std(ddof=1) / np.sqrt(n)
    shown = [f"{np.exp(x):.3g}" if are_logs else f"{x:.2f}" for x in (on, off)]
    return [name, problems, n, *shown, f"{on - off:+.2f}", f"{error:.2f}"]


# -- samplers, on posteriors that a seed draws ------------------------------------------------------------

CURVED = ("bend", "funnel", "heavy", "product", "ring", "hierarchy")
SHAPES = ("bend", "funnel", "heavy", "correlated", "mixture", "spike", "kink", "wall", "skewed", "ring")
POSTERIORS = (*SHAPES, "hierarchy", "regression", "logistic", "product", "noise")
PARTICLES_GROUPS = {"curved": CURVED, "others": tuple(f for f in SHAPES if f not in CURVED)}
KHMC_GROUPS = {
    "curved": CURVED,
    "two modes": ("pair",),
    "many modes": ("apart",),
    "products": ("product",),
    "raw scales": ("raw",),
    "others": tuple(f for f in POSTERIORS if f not in CURVED),
}
MEASURES = ("right", "silent", "error", "size", "seconds")
_LOGARITHMIC = ("error", "size", "seconds")

STEPS_OF_ONE_SIZE = {"mcmc.trajectory.SMALLEST_SHARE": 1.0, "mcmc.surrogate_fit.LONGEST": np.pi / 2.0}

#: Mechanism -> what stands in place of names of modules when it is off.
KHMC = {
    "chains of trajectories": {"mcmc.surrogate_fit.choose_chain_length": lambda *given: 1},
    "as long": {"mcmc.trajectory._TARGET_CORRELATION": 0.4},
    "drawn step sizes": STEPS_OF_ONE_SIZE,
    "walks where trajectories are rejected": {
        "mcmc.kernel_hmc._walk_share": lambda worth, config: config.exploring_share
    },
    "fifty remembered": {"mcmc.kernel_hmc._MEMORY": 500},
    "a tenth tried": {"mcmc.kernel_hmc._LEAST_TRIED": 0.001},
    "coordinates given one": {"mcmc.conditionally_normal.fitted": lambda *given: None},
    "factors and scales themselves": {"mcmc.conditionally_normal._POWERS": (0,)},
    "climbs from draws of the prior": {
        "plugin.model.priors.other_hills": lambda places, *given: KnownPlaces(*(part[:0] for part in places))
    },
}


_adapt = moves.Differences.adapt


def _without_places(self, learned, proposals, accept_prob):
    return _adapt(self, learned, proposals, accept_prob)._replace(is_anew=False)


#: Moves of particles -> mechanism -> the same; "config" has other settings of the tempering.
PARTICLES = {
    moves.Walk: {
        "folds": {"config": {"num_folds": 1}},
        "moves until forgotten": {"config": {"min_moves": 10, "max_moves": 10}},
        "importance sampling at the end": {"config": {"importance": False}},
    },
    moves.Hamiltonian: {
        "importance sampling at the end": {"config": {"importance": False}},
        "chains of trajectories": {"mcmc.surrogate_fit.choose_chain_length": lambda *given: 1},
        "drawn step sizes": STEPS_OF_ONE_SIZE,
    },
    moves.Differences: {
        "places anew": {"smc.moves.Differences.adapt": _without_places},
    },
}


@contextlib.contextmanager
def _without(patches):
    """Put what stands in their place for names of the package; settings, as "config", are the caller's."""
    with contextlib.ExitStack() as stack:
        for target, other in patches.items():
            if target != "config":
                stack.enter_context(mock.patch(f"pymc_kernel.{target}", other))
        yield


def _largest_error(summary, truth):
    worst = 0.0
    for name, exact in truth.items():
        spread, which = compared(exact)
        worst = max(worst, *(abs(summary[name][0][k] - exact[k]) / spread for k in which))
    return worst


def _judged(row, truth, num_exact):
    """Return right, silent, and the logarithm of the error."""
    found = judge(row["summary"], truth, row["rhat"], row["said"], num_exact)
    return [found.outcome == "right", found.outcome == "silent", np.log(_largest_error(row["summary"], truth))]


def _measures(row, truth, num_exact, draws, num_evaluations, seconds):
    """Return right, silent, and logarithms of error, effective size and seconds."""
    if "summary" not in row:
        return np.full(len(MEASURES), np.nan)
    size = smallest_bulk_ess(np.stack(list(draws.values()), axis=-1)) / num_evaluations
    return np.array([*_judged(row, truth, num_exact), *np.log([1000.0 * size, seconds])])


def _khmc(step, settings, seed, kept, model):
    begun = time.process_time()
    idata = pk.sample_khmc(chains=2, cores=1, step=step, random_seed=seed, progressbar=False, **settings)
    kept["seconds"] = time.process_time() - begun
    kept["evaluations"] = idata["sample_stats"].attrs["tuning_evaluations"]
    kept["evaluations"] += idata["sample_stats"]["evaluations"].values.sum()
    kept["draws"] = idata["posterior"]
    return idata


def khmc_outcome(family, seed, names):
    """Return the measures of each mechanism's absence, the first with all of them, (names + 1, measures)."""
    make, truth, num_exact = fresh.posterior_of(family, seed)
    model = make()
    with model:
        step = pk.KernelHMC()
        zoo.measured(lambda: model, partial(_khmc, step, {"draws": 10, "tune": 200}, 0, {}), truth, "")  # compiles
    found = []
    for patches in ({}, *(KHMC[name] for name in names)):
        kept = {}
        with _without(patches):
            row = zoo.measured(lambda: model, partial(_khmc, step, {"draws": 500}, seed, kept), truth, "")
        if "raised" in row:
            print(family, seed, patches.keys(), row["raised"], flush=True)
        draws = zoo._draws(kept["draws"], truth) if "draws" in kept else {}
        found.append(_measures(row, truth, num_exact, draws, kept.get("evaluations", 1), kept.get("seconds", 1.0)))
    return np.array(found)


def _particles(evaluate, prior, kind, settings, seed, kept, model):
    """Return the last particles of four populations."""
    begun, found, evaluations = time.process_time(), [], 0
    for c, rng in enumerate(np.random.default_rng(seed).spawn(4)):
        start = prior[250 * c : 250 * (c + 1)]
        first = smc.tempering.Evaluated(start, *evaluate(start))
        state, history = smc.sample(rng, first, evaluate, smc.Config(kind(), **settings))
        found.append(rng.permutation(state.particles.positions))
        evaluations += len(start) + sum(info.evaluations for info in history)
    kept |= {"seconds": time.process_time() - begun, "evaluations": evaluations}
    kept["draws"] = {"posterior": xr.Dataset({"x": (("chain", "draw", "dim"), np.array(found))})}
    return kept["draws"]


def particles_outcome(family, seed):
    """Return the same of particles: for each kind of moves with all mechanisms, then without each."""
    make, truth, num_exact = fresh.posterior_of(family, seed)
    model = make()
    evaluate = compile_particle_density(model, "ablation", None)
    prior = pm.draw(model["x"], draws=1000, random_seed=seed)
    rows = []
    for kind, mechanisms in PARTICLES.items():
        for patches in ({}, *mechanisms.values()):
            kept, settings = {}, patches.get("config", {})
            call = partial(_particles, evaluate, prior, kind, settings, seed, kept)
            with _without(patches):
                row = zoo.measured(lambda: model, call, truth, "populations")
            if "raised" in row:
                print(family, seed, kind, patches.keys(), row["raised"], flush=True)
            draws = zoo._draws(kept["draws"]["posterior"], truth) if "draws" in kept else {}
            rows.append(_measures(row, truth, num_exact, draws, kept.get("evaluations", 1), kept.get("seconds", 1.0)))
    return np.array(rows)


def _drawn_evidence(family, seed):
    """Return density, log evidence and draws of the prior (n) -> (n, d) of a drawn posterior."""
    posterior = drawn(family, seed)
    model = posterior.make()
    evaluate = compile_particle_density(model, "ablation", None)
    return evaluate, posterior.log_evidence, lambda n: pm.draw(model["x"], draws=n, random_seed=seed)


def _normal_evidence(num_dims, seed):
    """Return the same of a standard normal prior and one observation of each coordinate, with noise drawn by seed."""
    rng = np.random.default_rng([seed, num_dims])
    noise = rng.uniform(0.2, 0.6)
    prior, likelihood, evidence = (stats.norm(scale=s) for s in (1.0, noise, np.sqrt(1.0 + noise**2)))
    observed = evidence.rvs(num_dims, random_state=rng)

    def evaluate(x):
        return prior.logpdf(x).sum(axis=1), likelihood.logpdf(x - observed).sum(axis=1)

    return evaluate, evidence.logpdf(observed).sum(), lambda n: rng.standard_normal((n, num_dims))


#: Problems -> what makes one of them from a seed.
EVIDENCE = {
    "mixtures and rings": (partial(_drawn_evidence, "mixture"), partial(_drawn_evidence, "ring")),
    "normal, 10 and 20 d": (partial(_normal_evidence, 10), partial(_normal_evidence, 20)),
}


def evidence_outcome(problems, which, seed):
    """Return logarithms of error and evaluations with all mechanisms of walks, then without each."""
    evaluate, log_evidence, draw = EVIDENCE[problems][which](seed)
    starts, rows = np.split(draw(6 * 500), 6), []
    for patches in ({}, *PARTICLES[moves.Walk].values()):
        errors, evaluations = [], 0
        for start, rng in zip(starts, np.random.default_rng(seed).spawn(len(starts)), strict=True):
            first = smc.tempering.Evaluated(start, *evaluate(start))
            state, history = smc.sample(rng, first, evaluate, smc.Config(moves.Walk(), **patches.get("config", {})))
            errors.append(state.log_evidence - log_evidence)
            evaluations += sum(info.evaluations for info in history)
        rows.append(np.log([np.sqrt(np.mean(np.square(errors))), evaluations / len(starts)]))
    return np.array(rows)


def evidence_rows(first, repetitions, jobs):
    """Yield rows of the evidence by particles that walk."""
    for problems in EVIDENCE:
        asked = [
            (problems, which, seed)
            for seed in range(first, first + repetitions)
            for which in range(len(EVIDENCE[problems]))
        ]
        found = np.array(list(harness.results(evidence_outcome, asked, jobs)))
        for k, name in enumerate(PARTICLES[moves.Walk]):
            for m, measure in enumerate(("error", "evaluations")):
                yield _row(f"evidence: {name}", f"{problems}: {measure}", found[:, [0, k + 1], m], are_logs=True)


def _sampler_rows(found, families, columns, groups, measures=MEASURES):
    """Yield rows of mechanisms, (name, column with, column without), from found (problems, columns, measures)."""
    for name, on, off in columns:
        for group, own in groups.items():
            rows = [i for i, family in enumerate(families) if family in own]
            for m, measure in enumerate(measures):
                pair = found[rows][:, [on, off], m]
                yield _row(name, f"{group}: {measure}", pair[np.isfinite(pair).all(axis=1)], measure in _LOGARITHMIC)


def khmc_rows(first, repetitions, jobs, names=tuple(KHMC), groups=tuple(KHMC_GROUPS)):
    """Yield rows of ``sample_khmc``."""
    families = list(dict.fromkeys(family for group in groups for family in KHMC_GROUPS[group]))  # once each
    asked = [(family, seed, names) for seed in range(first, first + repetitions) for family in families]
    found = np.array(list(harness.results(khmc_outcome, asked, jobs)))
    columns = [(f"khmc: {name}", 0, k + 1) for k, name in enumerate(names)]
    own = {group: KHMC_GROUPS[group] for group in groups}
    yield from _sampler_rows(found, [family for family, *_ in asked], columns, own)


def particles_rows(first, repetitions, jobs):
    """Yield rows of particles, each kind of moves with all mechanisms before the same without each."""
    asked = [(family, seed) for seed in range(first, first + repetitions) for family in SHAPES]
    found = np.array(list(harness.results(particles_outcome, asked, jobs)))
    columns, at = [], 0
    for kind, mechanisms in PARTICLES.items():
        columns += [(f"{kind.__name__}: {name}", at, at + k + 1) for k, name in enumerate(mechanisms)]
        at += 1 + len(mechanisms)
    yield from _sampler_rows(found, [family for family, _ in asked], columns, PARTICLES_GROUPS)


def burn_in_outcome(seed):
    """Return error and effective size of one chain from zero, fifty standard deviations off, with burn-in and not."""
    target, found = linear_regression(8), []
    exact = target.sample(np.random.default_rng(seed), 20_000)
    for patches in ({}, {"mcmc.burn_in.has_arrived": lambda arrival: True}):
        with _without(patches):
            run = measures.chain(
                np.random.default_rng(seed), np.zeros(8), target.log_density, kernel_hmc.Config(), 900, 600
            )
            draws = np.array([state.position for state, _ in run])
        error = np.abs((draws.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)).max()
        found.append(np.log([error, smallest_bulk_ess(draws[None]) / 1.5]))
    return np.array(found)


def burn_in_rows(first, repetitions, jobs):
    """Yield rows of chains from far away."""
    found = np.array(list(harness.results(burn_in_outcome, [(first + r,) for r in range(repetitions)], jobs)))
    for m, problems in enumerate(FAR):
        yield _row("khmc: burn-in", problems, found[:, :, m], are_logs=True)


#: Rule -> the same, of the number of draws from each of which a valley must part a place that chains have missed.
MISSED = {
    "valleys from three draws, not one": {"mcmc.chain_checks._NUM_NEAREST": 1},
    "valleys from three draws, not ten": {"mcmc.chain_checks._NUM_NEAREST": 10},
}
#: Problems -> families, and the standard deviation of noise that is added to each log density.
MISSED_OF = {
    "half of the draws, pair and apart": (("pair", "apart"), 0.0),
    "half of the draws, product": (("product",), 0.0),
    "all draws, curved": (CURVED, 0.0),
    "all draws, others": ((*KHMC_GROUPS["others"], "pair", "apart"), 0.0),
    "half of the draws, pair and apart, estimated": (("pair", "apart"), 1.0),
    "all draws, estimated": ((*KHMC_GROUPS["others"], "pair", "apart"), 1.0),
}


def missed_outcome(family, seed, noise_sd):
    """Return whether places are told that are missed, by half of a thousand exact draws and by all, under each rule.

    The places are those that a search for a start evaluates, two hundred more than the draws of the prior. The half is
    that of one sign of the first factor of a product, else the larger one of two clusters.
    """
    posterior, rng = drawn(family, seed), np.random.default_rng(seed)
    model = posterior.make()
    evaluate = compile_particle_density(model, "ablation", None)

    def log_density(position):
        return float(sum(part[0] for part in evaluate(position[None]))) + noise_sd * rng.standard_normal()

    exact = az.from_dict({"posterior": {name: x[None, :1000] for name, x in posterior.exact.items()}})
    draws = unconstrained_draws(exact, model)[0]
    logs = np.array([log_density(x) for x in draws]) + noise_sd**2  # chains keep high estimates
    _, places = prior_draws(model, model.value_vars, model.initial_point()).choose(log_density, rng, 200)
    first = draws[:, 0] > 0.0 if family == "product" else kmeans2(draws / draws.std(axis=0), 2, rng=rng)[1] == 0
    halves, found = (first if first.mean() > 0.5 else ~first, np.full(len(draws), True)), []
    for patches in ({}, *MISSED.values()):
        with _without(patches):
            found.append([missed(places, draws[r], logs[r], log_density, noise_sd) is not None for r in halves])
    return np.array(found, dtype=float)


def missed_rows(first, repetitions, jobs):
    """Yield rows of the places that draws have missed."""
    for problems, (families, noise_sd) in MISSED_OF.items():
        asked = [(family, seed, noise_sd) for seed in range(first, first + repetitions) for family in families]
        found = np.array(list(harness.results(missed_outcome, asked, jobs)))
        for k, name in enumerate(MISSED):
            yield _row(f"missed: {name}", problems, found[:, [0, k + 1], int(problems.startswith("all"))])


# -- learned likelihoods ---------------------------------------------------------------------------------

SIMULATED = {
    "normal": ("linear", "bends", "growth", "modes"),
    "counts": ("counts", "proportions"),
    "others": ("gamma_sample", "edge", "autoregression", "heavy_tails", "useless"),
    "community": PLAIN,
}
LEARNED = ("score", "error", "seconds")
_LEARNED_OF = {group: tuple(m for m in LEARNED if (group, m) != ("community", "error")) for group in SIMULATED}
_NUM_SIMULATIONS, _NUM_SCORED, _NUM_POSTERIOR = 1000, 500, 1000
_MOST = 10.0  # nats that one simulation may speak for, as in the package
_sizes, _candidates = LearnedLikelihood._sizes, residuals.candidates


def _plain_maps(parameters, summaries, spread, rng):
    plain = SummaryMap.of(summaries)
    return choices.choose_parameter_map(parameters, plain(summaries), rng), plain


def _residuals_without(*families):
    """Return ``candidates`` without some of its lists: 0 is normal, 1 scales, 2 quantiles, 3 and 4 joint."""

    def few(noise, weights, rng):
        yield from (c for k, c in enumerate(_candidates(noise, weights, rng)) if k not in families)

    return few


_OF_LEARNED = "likelihood_free.learned_likelihood"
LIKELIHOOD = {
    name: {f"{_OF_LEARNED}.{target}": other}
    for name, (target, other) in {
        "functions of parameters": (
            "choices.choose_parameter_map", lambda z, values, rng: ParameterMap.of(z, ["identity"] * z.shape[1]),
        ),
        "functions of summaries": ("learned.choose_maps", _plain_maps),
        "metric": ("stages.learn_metric", lambda *given: None),
        "outliers count less": ("stages._REGULAR", np.inf),
        "means again": ("stages._REWEIGHTED", 0),
        "bumps in one": ("learned.LearnedLikelihood._sizes", lambda self, n, d: (0, _sizes(self, n, d)[1])),
        "bumps in all": ("learned.LearnedLikelihood._sizes", lambda self, n, d: (_sizes(self, n, d)[0], 0)),
        "finer bumps": ("features._MAX_DIMS_OF_FINE", 0),
        "coefficients that depend": (
            "stages.coefficient_blocks", lambda design, n, q: (np.array([0]), [1]),
        ),
        "all weights together": ("training._MAX_ROUNDS", 0),
        "scale of residuals": ("training._SCALES", np.ones(1)),
        "mixtures": ("training.candidates", _residuals_without(1, 2, 3, 4)),
        "scales of mixtures": ("training.candidates", _residuals_without(1)),
        "quantiles of mixtures": ("training.candidates", _residuals_without(2)),
        "joint mixtures": ("training.candidates", _residuals_without(3, 4)),
    }.items()
}  # fmt: skip


def _simulated(family, seed):
    """Return parameters and data of simulations, and a function that returns the error of a fit."""
    num_simulations = _NUM_SIMULATIONS + _NUM_SCORED
    if family in TASKS:
        rng = np.random.default_rng([seed, *family.encode()])
        with pm.Model() as model:
            TASKS[family].prior()
        latent = ModelPrior(model).draw(rng, num_simulations)
        return latent, TASKS[family].simulate(rng, constrained_draws(model, latent)["theta"]), lambda fit: np.nan
    problem, latent, data, observed = problem_of(family, seed, num_simulations)
    exact = exact_draws(problem, observed, np.random.default_rng(seed))
    exact = exact[np.linspace(0, len(exact) - 1, _NUM_POSTERIOR).astype(int)]
    true = problem.log_likelihood(exact, observed)
    return latent, data, lambda fit: (np.maximum(fit.log_density(exact, observed), -1e6) - true).std()


def likelihood_outcome(family, seed, names):
    """Return score, log error and log seconds with all mechanisms, then without each, (names + 1, 3)."""
    latent, data, error = _simulated(family, seed)
    found, whole = [], None
    for patches in ({}, *(LIKELIHOOD[name] for name in names)):
        begun = time.process_time()
        with _without(patches):
            fit = LearnedLikelihood(num_replicates=1).fit(latent[:_NUM_SIMULATIONS], data[:_NUM_SIMULATIONS], seed)
        seconds = time.process_time() - begun
        scores = np.maximum(fit.log_density(latent[_NUM_SIMULATIONS:], data[_NUM_SIMULATIONS:]), -1e6)
        whole = scores if whole is None else whole
        score = whole.mean() + np.clip(scores - whole, -_MOST, _MOST).mean()
        found.append([score, np.log(error(fit)), np.log(seconds)])
    print(family, seed, flush=True)
    return np.array(found)


def likelihood_rows(first, repetitions, jobs, names=tuple(LIKELIHOOD), groups=tuple(SIMULATED)):
    """Yield rows of learned likelihoods."""
    of_group = {family: group for group in groups for family in SIMULATED[group]}
    asked = [(family, seed, names) for seed in range(first, first + repetitions) for family in of_group]
    found = np.array(list(harness.results(likelihood_outcome, asked, jobs)))
    group_of = np.array([of_group[family] for family, *_ in asked])
    for k, name in enumerate(names):
        for group in groups:
            for measure in _LEARNED_OF[group]:
                pairs = found[group_of == group][:, [0, k + 1], LEARNED.index(measure)]
                yield _row(f"likelihood: {name}", f"{group}: {measure}", pairs, measure != "score")


# -- outputs of black boxes ------------------------------------------------------------------------------

ALL = slice(None)
#: Mechanism -> what stands in place of names of modules when it is off; "config" has other arguments.
OUTPUTS = {
    "logarithms": {"emulation.outputs._both": lambda positive: [np.zeros_like(positive)]},
    "directions of change": {"config": {"near": None}},
    "directions at near rows": {"config": {"near": ALL}},
    "depths on a log scale": {"config": {"is_log_likelihood": False}},
    "log scale where draws end": {"emulation.outputs.depth_of_draws": lambda num_dims: 4.0 * num_dims + 10.0},
}
_TIMES = np.linspace(0.2, 8.0, 40)
_PLACES_A_COEFFICIENT = 1.5  # of a quadratic function
_NEAR = 0.25  # of the places, as in a search that has found the posterior
_NUM_DRAWN = 2000  # of a prior, and of a posterior: an error is known within some hundredths


def _exponentials(x):
    first, second, early, late = np.exp(x.T[:, :, None])
    return early * np.exp(-first * _TIMES) + late * np.exp(-0.2 * second * _TIMES)


def _oscillation(x):
    rate, damping, size, start, delay = x.T[:, :, None]
    inner = np.exp(0.5 * rate) * (_TIMES - delay)
    return np.exp(size - 0.1 * np.exp(damping) * _TIMES) * np.cos(inner + start)


def _growth(x):
    rate, limit, begin, loss, other, ratio = np.exp(0.5 * x.T[:, :, None])
    grown = limit / (1.0 + 9.0 * begin * np.exp(-rate * _TIMES))
    return grown * np.exp(-0.1 * loss * _TIMES) + 0.3 * other * np.exp(-ratio * _TIMES)


SOLVERS = {_exponentials: 4, _oscillation: 5, _growth: 6}
OUTPUT_GROUPS = {
    "solvers": tuple(SOLVERS),
    "log likelihoods, curved": tuple(f for f in SHAPES if f in CURVED),
    "log likelihoods, others": tuple(f for f in SHAPES if f not in (*CURVED, "wall")),
    "log likelihoods, regression": (6, 8, 10),  # dimensions
}


def _normal_draws(rng, mean, precision):
    """Return draws of a normal distribution with this mean (k,) and precision (k, k)."""
    factor = np.linalg.inv(np.linalg.cholesky(precision)).T
    return mean + rng.standard_normal((_NUM_DRAWN, len(mean))) @ factor.T


def _of_solver(solver, seed):
    """Return the solver, draws of a standard normal prior, and of a normal approximation to a posterior and its log."""
    rng, k = np.random.default_rng([seed, SOLVERS[solver]]), SOLVERS[solver]
    true, steps = 0.7 * rng.standard_normal(k), 1e-4 * np.eye(k)
    slopes = np.array([(solver((true + h)[None]) - solver((true - h)[None]))[0] / 2e-4 for h in steps])
    noise = rng.uniform(0.02, 0.2) * solver(true[None]).std()
    near = _normal_draws(rng, true, slopes @ slopes.T / noise**2 + np.eye(k))
    return (lambda x: solver(x) / noise), rng.standard_normal((_NUM_DRAWN, k)), near


def _of_regression(num_dims, seed):
    """Return the same of a logistic regression with correlated covariates, by a normal approximation."""
    rng = np.random.default_rng([seed, num_dims])
    design = rng.standard_normal((20 * num_dims, num_dims)) @ (np.eye(num_dims) + 0.5)
    signs = np.where(rng.random(len(design)) < expit(design @ rng.standard_normal(num_dims)), 1.0, -1.0)
    signed = signs[:, None] * design

    def log_likelihood(x):
        return -np.logaddexp(0.0, -x @ signed.T).sum(axis=1, keepdims=True)

    mode, precision = np.zeros(num_dims), np.eye(num_dims)
    for _ in range(30):  # Newton's method
        share = expit(-signed @ mode)
        precision = signed.T @ (signed * (share * (1.0 - share))[:, None]) + np.eye(num_dims) / 9.0
        mode = mode + np.linalg.solve(precision, signed.T @ share - mode / 9.0)
    prior = 3.0 * rng.standard_normal((_NUM_DRAWN, num_dims))
    return log_likelihood, prior, _normal_draws(rng, mode, precision)


def _of_posterior(family, seed):
    """Return the log likelihood of a drawn posterior, draws of its prior, and of itself."""
    posterior, rng = drawn(family, seed), np.random.default_rng(seed)
    model = posterior.make()
    evaluate = compile_particle_density(model, "ablation", None)
    prior = ModelPrior(model).draw(rng, _NUM_DRAWN)
    return (lambda x: evaluate(x)[1][:, None]), prior, rng.permutation(posterior.exact["x"])[:_NUM_DRAWN]


def outputs_outcome(problem, seed, names):
    """Return log errors with all mechanisms, then without each, (names + 1,)."""
    is_solver = problem in SOLVERS
    make = _of_solver if is_solver else (_of_posterior if problem in SHAPES else _of_regression)
    function, prior, exact = make(problem, seed)
    k = exact.shape[1]
    num_near = k + 2 + int(_PLACES_A_COEFFICIENT * _NEAR * (k + 1) * (k + 2) / 2)
    center = exact.mean(axis=0)
    places = np.concatenate([prior[: int(num_near / _NEAR)], center + 2.0 * (exact[:num_near] - center)])
    values, true = function(places), function(exact[num_near:])
    if not is_solver:  # a place at which it is zero, as beyond a wall, is none to learn from
        places, values = places[is_finite := np.isfinite(values[:, 0])], values[is_finite]
    near = (
        np.arange(len(places)) >= len(places) - num_near
        if is_solver
        else values[:, 0] >= np.sort(values[:, 0])[-num_near]
    )
    found = []
    for patches in ({}, *(OUTPUTS[name] for name in names)):
        config = {"near": near, "is_log_likelihood": not is_solver} | patches.get("config", {})
        with _without(patches):
            fit = fit_outputs(places, values, np.random.default_rng(seed), **config)
        error = fit(exact[num_near:]) - true
        found.append(np.log(np.sqrt(np.mean(error**2)) if is_solver else error.std()))
    return np.array(found)


def outputs_rows(first, repetitions, jobs):
    """Yield rows of outputs of black boxes."""
    for group, problems in OUTPUT_GROUPS.items():
        of_depths = "depths on a log scale", "log scale where draws end"
        left_out = of_depths if group == "solvers" else ("logarithms",)
        names = [name for name in OUTPUTS if name not in left_out]
        asked = [(problem, seed, names) for seed in range(first, first + repetitions) for problem in problems]
        found = np.array(list(harness.results(outputs_outcome, asked, jobs)))
        for m, name in enumerate(names):
            yield _row(f"outputs: {name}", f"{group}: error", found[:, [0, m + 1]], are_logs=True)


# -- rounds of simulations -------------------------------------------------------------------------------

#: Mechanism -> what stands in place of names of modules when it is off.
ROUNDS = {
    "simulations from afar": {"rounds.cautious.CautiousRounds._far_ones_help": lambda *given: False},
    "matches": {"rounds.cautious.choose_match": lambda likelihood, folds, *given: (likelihood, folds)},
}
#: Group -> families, and mechanisms that can act there.
ROUNDED = {
    **{group: (families, ("simulations from afar",)) for group, families in SIMULATED.items() if group != "community"},
    "single counts": (tuple(MATCHED), tuple(ROUNDS)),
}
OF_ROUNDS = ("right", "silent", "error", "seconds")


def rounds_outcome(family, seed, names):
    """Return the measures of ``sample_likelihood_free`` by default, then without each mechanism, (names + 1, 4)."""
    make, truth, num_exact = fresh.posterior_of(family, seed)
    sampler, chains_are = fresh.SAMPLERS["sample_likelihood_free"]
    call = partial(sampler, seed=seed)
    found = []
    for patches in ({}, *(ROUNDS[name] for name in names)):
        begun = time.process_time()
        with _without(patches):
            row = zoo.measured(make, call, truth, chains_are)
        log_seconds = np.log(time.process_time() - begun)
        if "raised" in row:
            print(family, seed, patches.keys(), row["raised"], flush=True)
        judged = _judged(row, truth, num_exact) if "summary" in row else [False, False, np.nan]
        found.append([*judged, log_seconds])
    return np.array(found, dtype=float)


def rounds_rows(first, repetitions, jobs, names=tuple(ROUNDS), groups=tuple(ROUNDED)):
    """Yield rows of rounds of simulations."""
    for group in groups:
        families, able = ROUNDED[group]
        own = [name for name in names if name in able]
        if not own:
            continue
        asked = [(family, seed, own) for seed in range(first, first + repetitions) for family in families]
        found = np.array(list(harness.results(rounds_outcome, asked, jobs)))
        columns = [(f"rounds: {name}", 0, k + 1) for k, name in enumerate(own)]
        yield from _sampler_rows(found, [family for family, *_ in asked], columns, {group: families}, OF_ROUNDS)


# -- searches on emulated models ---------------------------------------------------------------------------

_OF_SEARCH = "plugin.emulation.search.Search"
_OF_CHALLENGERS = "plugin.emulation.challengers.Challengers"


#: Mechanism -> what stands in place of names of modules when it is off.
SEARCH = {
    "first places": {"plugin.emulation.structure.Unknown.design_size": 0},
    "penalty": {"plugin.emulation.parts.Part.has_penalty": False},
    "explorers": {
        f"{_OF_SEARCH}._explored": lambda self, prior: (
            self.particles.passed if self.by_particles else np.empty((0, self.initial.size))
        )
    },
    "chains from elsewhere": {f"{_OF_CHALLENGERS}.challenge": lambda self, chains, draws, *given: (draws, 0.0)},
    "where it may go on": {f"{_OF_CHALLENGERS}.note_possible": lambda *given: 0.0},
    "beyond the draws": {
        f"{_OF_CHALLENGERS}.note_beyond": lambda *given: None,
        f"{_OF_SEARCH}._share_beyond": lambda *given: 0.0,
    },
    "least certain draws": {f"{_OF_SEARCH}._most_uncertain": lambda self: np.empty((0, self.initial.size))},
    "predicted from others": {f"{_OF_SEARCH}._held_out_distance": lambda self: 0.0},
    "falling trend": {"plugin.emulation.emulated_model.LearnedPart.falls": False},
    "particles": {f"{_OF_SEARCH}._weigh_modes": lambda *given: False},
    "particles: on the way": {"plugin.emulation.chains.Particles.know_the_way": True},
    "particles: what they lack": {"plugin.emulation.search.share_beyond": lambda *given: 0.0},
}
SEARCH["explorers and least certain draws"] = SEARCH["explorers"] | SEARCH["least certain draws"]
SEARCHED = {
    "modes": tuple(learned_modes.FAMILIES),
    "tails": tuple(learned_tails.FAMILIES),
    "drawn": ("bend", "funnel", "heavy", "mixture", "spike", "kink", "hierarchy", "regression", "noise"),
    "parts": ("hares and lynx, 8 parameters", "sensor in a regression, 34 parameters"),
    "flat": ("normal, from starts", "normal"),
}
#: Group -> its script, and in its rows the error, what is judged, and how large that is at most where it is right.
_SCRIPTS = {
    "modes": (learned_modes, "off", "off", learned_modes.WRONG),
    "tails": (learned_tails, "off", "off", learned_tails.WRONG),
    "parts": (learned_parts, "mean", "certain", learned_parts.OFF),
}
_OF_SEARCHES = ("right", "silent", "error", "evaluations", "seconds")
WHOLE = "none"  # of the mechanisms is left out
SEARCH_ROWS = harness.Rows(
    harness.ROWS / "ablations.jsonl", lambda row: (row["group"], row["family"], row["seed"], row["without"])
)


def _beside_a_flat_prior(family, seed):
    """Return the same of a normal posterior of two to six correlated parameters, by default or from wide starts."""
    rng = np.random.default_rng([seed, 7])
    d = int(rng.integers(2, 7))
    root = rng.normal(size=(d, d + 2))
    center, covariance = 3.0 * rng.normal(size=d), root @ root.T
    density, spread = stats.multivariate_normal(center, covariance), np.sqrt(np.diag(covariance))
    start = center + 4.0 * spread * rng.normal(size=(12, d)) if family.endswith("starts") else None
    with pm.Model(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = pm.Flat("x", shape=d)
        pm.Potential("y", wrap_py([pt.dvector], [pt.dscalar])(lambda x: np.asarray(density.logpdf(x)))(x))
        idata = pk.sample_surrogate(start=start, random_seed=seed, progressbar=False)
    draws = (idata["posterior"]["x"].values.reshape(-1, d) - center) / spread
    error = max(np.abs(draws.mean(axis=0)).max(), np.abs(draws.std(axis=0) - 1.0).max())
    is_right, is_said = error <= learned_parts.OFF, bool(measures.said_by_emulation(said))
    evaluations = int(idata["sample_stats"]["num_evaluations"])
    return [is_right, not (is_right or is_said), np.log(error), np.log(evaluations)]


def _searched(group, family, seed):
    """Return right, silent, and logarithms of error and evaluations of one search."""
    if group in _SCRIPTS:
        script, error, judged, most = _SCRIPTS[group]
        row = script.one_run(family, seed)
        is_right, is_said = row[judged] <= most, row["said"] or row["rhat"] > STUCK
        return [is_right, not is_right and not is_said, np.log(row[error]), np.log(row["evaluations"])]
    if group == "flat":
        return _beside_a_flat_prior(family, seed)
    kept = {}

    def call(model):
        kept["idata"] = fresh.SAMPLERS["sample_surrogate"][0](model, seed)
        return kept["idata"]

    make, truth, num_exact = fresh.posterior_of(family, seed)
    row = zoo.measured(make, call, truth, "")
    if "summary" not in row:
        return [False, False, np.nan, np.nan]
    found = judge(row["summary"], truth, row["rhat"], row["said"], num_exact)
    evaluations = int(kept["idata"]["sample_stats"]["num_evaluations"])
    return [found.outcome == "right", found.outcome == "silent", *np.log([found.error, evaluations])]


def search_outcome(group, family, seed, name):
    """Return a row of one search without one mechanism, or with all of them, ``WHOLE``."""
    begun = time.process_time()
    with _without(SEARCH.get(name, {})):
        try:
            measured = _searched(group, family, seed)
        except ValueError as error:  # nothing could be learned
            print(family, seed, name, harness.shortened(str(error)), flush=True)
            measured = [False, False, np.nan, np.nan]
    found = [float(x) for x in (*measured, np.log(time.process_time() - begun))]
    return {"group": group, "family": family, "seed": seed, "without": name} | dict(
        zip(_OF_SEARCHES, found, strict=True)
    )


def search_rows(first, repetitions, jobs, names=tuple(SEARCH), groups=tuple(SEARCHED)):
    """Run the searches that have no row, and yield rows of all that have one, on problems that have both."""
    tasks = [
        (group, family, seed, name)
        for seed in range(first, first + repetitions)
        for group in groups
        for family in SEARCHED[group]
        for name in (WHOLE, *names)
    ]
    kept = SEARCH_ROWS.complete(search_outcome, tasks, _told, jobs=jobs)
    found = {SEARCH_ROWS.key(row): [row[measure] for measure in _OF_SEARCHES] for row in kept}
    for name in SEARCH:
        for group in SEARCHED:
            of_both = [
                (found[*problem, WHOLE], found[*problem, own])
                for *problem, own in found
                if own == name and problem[0] == group and (*problem, WHOLE) in found
            ]
            for m, measure in enumerate(_OF_SEARCHES):
                pairs = np.array([[on[m], off[m]] for on, off in of_both]).reshape(-1, 2)
                pairs = pairs[np.isfinite(pairs).all(axis=1)]
                if len(pairs) > 1:
                    yield _row(f"search: {name}", f"{group}: {measure}", pairs, m > 1)


def _told(row):
    return ", ".join(f"{measure} {row[measure]:.2f}" for measure in _OF_SEARCHES)


#: Part of the package -> mechanisms, problems, and the function of first seed, repetitions and jobs that yields rows.
FAR = ("from far away: error", "from far away: size")
PROBLEMS = tuple(f"{group}: {measure}" for group in KHMC_GROUPS for measure in MEASURES)
PARTS = {
    "stein": (STEIN, (*(f"wrong draws, {family}" for family in FAMILIES), "right draws"), stein_rows),
    "khmc": ([f"khmc: {name}" for name in KHMC], PROBLEMS, khmc_rows),
    "burn-in": (["khmc: burn-in"], FAR, burn_in_rows),
    "missed": ([f"missed: {name}" for name in MISSED], tuple(MISSED_OF), missed_rows),
    "particles": (
        [f"{kind.__name__}: {name}" for kind, names in PARTICLES.items() for name in names],
        PROBLEMS,
        particles_rows,
    ),
    "likelihood": (
        [f"likelihood: {name}" for name in LIKELIHOOD],
        [f"{group}: {measure}" for group, own in _LEARNED_OF.items() for measure in own],
        likelihood_rows,
    ),
    "outputs": (
        [f"outputs: {name}" for name in OUTPUTS],
        [f"{group}: error" for group in OUTPUT_GROUPS],
        outputs_rows,
    ),
    "search": (
        [f"search: {name}" for name in SEARCH],
        [f"{group}: {measure}" for group in SEARCHED for measure in _OF_SEARCHES],
        search_rows,
    ),
    "rounds": (
        [f"rounds: {name}" for name in ROUNDS],
        [f"{group}: {measure}" for group in ROUNDED for measure in OF_ROUNDS],
        rounds_rows,
    ),
    "evidence": (
        [f"evidence: {name}" for name in PARTICLES[moves.Walk]],
        [f"{problems}: {measure}" for problems in EVIDENCE for measure in ("error", "evaluations")],
        evidence_rows,
    ),
}
TABLE = harness.Table(
    "ablations",
    ("mechanism", "problems", "n", "with", "without", "difference", "standard error"),
    [(name, problem) for names, problems, _ in PARTS.values() for name in names for problem in problems],
)


def main(
    parts=tuple(PARTS), first=1000, repetitions=40, jobs=2, mechanisms=(*KHMC, *LIKELIHOOD, *ROUNDS, *SEARCH),
    groups=(*KHMC_GROUPS, *SIMULATED, *ROUNDED, *SEARCHED),
):  # fmt: skip
    """Print the rows of the parts, and write them to the table.

    Of the parts in ``chosen`` those of the ``mechanisms`` and of ``groups`` of problems.
    """
    chosen = {
        "khmc": (KHMC, KHMC_GROUPS),
        "likelihood": (LIKELIHOOD, SIMULATED),
        "rounds": (ROUNDS, ROUNDED),
        "search": (SEARCH, SEARCHED),
    }
    of_part = {
        part: (tuple(m for m in known if m in mechanisms), tuple(g for g in known_groups if g in groups))
        for part, (known, known_groups) in chosen.items()
    }
    for part in parts:
        rows = []
        for row in PARTS[part][2](first, repetitions, jobs, *of_part.get(part, ())):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
        TABLE.write(rows)


if __name__ == "__main__":
    harness.run(main)
