"""Groups whose likelihoods are only estimated: ``pk.sample_khmc()``, exact chains that move group by group.

Twelve subjects of ``benchmarks.learned_parts``, whose levels of a drug share a random factor in each subject. It is
integrated out by importance sampling in each likelihood, with as many draws as give the log estimate a standard
deviation of .5 to 1. That integral is known for normal logarithms, so that NUTS on the model without noise, written
not centred, is the truth. Estimates of each group count, those of the search too: 1,000 draws of four chains, and for
the rivals, which move all variables at once, as many estimates. Some two hours on one core.
"""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_parts import DRAWS, HOURS, STUCK, draws_of, level, moments

NUM_GROUPS, BUDGET = 12, 5000  # estimates of each group, for the rivals
NOISE, FACTOR_SD = 0.1, 0.1  # of the logarithms of single levels, and of the factor that those of a subject share
CENTER = np.log([1.5, 2.8, 32.0])


def _covariance(lib, noise):
    return noise**2 * lib.eye(HOURS.size) + FACTOR_SD**2 * lib.ones((HOURS.size, HOURS.size))


def estimate_with(num_draws, is_blind=False):
    """Return a function with the log of an unbiased estimate for one subject.

    The factor is drawn near the mean residual, from a normal distribution three times as wide as that mean's noise. It
    is not quite where the factor's posterior is, as importance densities are. A blind one draws from the factor's
    prior: the noise then grows with the residual.
    """

    def log_estimate(rng, rates, noise, observed):
        residual = np.log(observed) - np.log(np.maximum(level(np.exp(rates)), 1e-9))
        z, sd = rng.standard_normal(num_draws), 3.0 * NOISE / np.sqrt(HOURS.size)
        factor = FACTOR_SD * z if is_blind else 0.8 * residual.mean() + sd * z
        log_terms = -0.5 * ((residual - factor[:, None]) ** 2).sum(axis=1) / noise**2 - HOURS.size * np.log(noise)
        if not is_blind:
            log_terms += -0.5 * (factor / FACTOR_SD) ** 2 - np.log(FACTOR_SD) + 0.5 * z**2 + np.log(sd)
        return np.logaddexp.reduce(log_terms) - np.log(num_draws)

    return log_estimate


def _data(seed):
    """Return weights (groups,) and levels (groups, times)."""
    rng = np.random.default_rng([seed, 5])
    weights = 0.2 * rng.standard_normal(NUM_GROUPS)
    rates = CENTER + [0.4, 0.25, 0.2] * rng.standard_normal((NUM_GROUPS, 3))
    rates[:, 2] += 0.7 * weights
    factor = FACTOR_SD * rng.standard_normal((NUM_GROUPS, 1))
    noise = NOISE * rng.standard_normal((NUM_GROUPS, HOURS.size))
    return weights, level(np.exp(rates)) * np.exp(factor + noise)


def _symbolic_level(rates, dose=10.0):
    absorption, clearance, volume = (pt.exp(rates[:, i, None]) for i in range(3))
    loss = clearance / volume
    return dose / volume * absorption / (absorption - loss) * (pt.exp(-loss * HOURS) - pt.exp(-absorption * HOURS))


def groups(seed, is_exact, is_centred=True, has_noise=False, is_blind=False):
    """Return a model of 43 parameters.

    Parameters
    ----------
    seed : int
    is_exact : bool
        Whether the likelihoods are known, in place of estimated.
    is_centred : bool
        Whether the rates themselves are parameters.
    has_noise : bool
        Whether the noise of single levels is a parameter, which all likelihoods have as an input, in place of the slope
        of the volume in the weight.
    is_blind : bool
        Whether the noise of estimates grows with the residuals.
    """
    weights, observed = _data(seed)
    with pm.Model() as model:
        center = pm.Normal("center", [0.5, 1.0, 3.5], 1.0, shape=3)
        spread = pm.HalfNormal("spread", 0.5, shape=3)
        mean = center
        if not has_noise:
            slope = pm.Normal("slope", 0.0, 1.0)
            mean = center + slope * weights[:, None] * np.array([0.0, 0.0, 1.0])
        noise = pm.HalfNormal("noise", 0.3) if has_noise else NOISE
        if is_centred and not is_exact:
            rates = pm.Normal("rates", mean, spread, shape=(NUM_GROUPS, 3))
        else:
            effect = pm.Normal("effect", 0.0, 1.0, shape=(NUM_GROUPS, 3))
            rates = pm.Deterministic("rates", mean + spread * effect)
        if is_exact:
            covariance = _covariance(pt, noise)
            levels = pt.log(pt.maximum(_symbolic_level(rates), 1e-9))
            pm.MvNormal("y", levels, covariance, observed=np.log(observed))
        else:
            for i, of_group in enumerate(observed):
                num_draws = 12 + i // 2 if is_blind else 4 + i // 3
                pk.EstimatedLikelihood(f"y{i}", estimate_with(num_draws, is_blind), rates[i], noise, observed=of_group)
    return model


def by_khmc(model, seed, settings):
    """Return draws by default, and the estimates of each group."""
    idata = pk.sample_khmc(model=model, random_seed=seed, **settings)
    return idata, int(idata["sample_stats"]["evaluations"].sum()) + idata["sample_stats"].attrs["tuning_evaluations"]


def by_kernel_hmc(model, seed, settings):
    """Return draws of chains that learn the whole log density together."""
    tune = BUDGET // 8
    with model:
        idata = pk.sample_khmc(draws=tune, tune=tune, step=pk.KernelHMC(), random_seed=seed, **settings)
    return idata, BUDGET


def by_differences(model, seed, settings):
    """Return draws of PyMC's DEMetropolisZ, a fifth of the estimates for tuning."""
    tune = BUDGET // 20
    with model:
        step = pm.DEMetropolisZ()
        idata = pm.sample(BUDGET // 4 - tune, tune=tune, step=step, random_seed=seed, **settings)
    return idata, BUDGET


METHODS = {"pk.sample_khmc()": by_khmc, "pk.KernelHMC, all at once": by_kernel_hmc, "pm.DEMetropolisZ": by_differences}
BAR = "centred, three inputs"
TARGETS = {
    BAR: {},
    "centred, noise grows with residuals": {"is_blind": True},
    "centred, a parameter of all likelihoods": {"has_noise": True},
    "not centred, a parameter of all likelihoods": {"has_noise": True, "is_centred": False},
}
PAIRS = [(t, m) for t in TARGETS for m in METHODS if t == BAR or m == "pk.sample_khmc()"]
ROWS = harness.Rows(harness.ROWS / "estimated_groups.jsonl", lambda row: (row["target"], row["method"], row["seed"]))
HEADER = (
    "model", "sampler", "runs", "estimates of each group", "R-hat", "worst", "effective draws", "least", "accepted",
    "means off", "worst", "spreads off", "worst", "said",
)  # fmt: skip
TABLE = harness.Table("estimated-groups", HEADER, PAIRS)


def one_run(target, method, seed):
    """Return a row: R-hat and bulk effective size of the worst parameter, the largest errors beside NUTS."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    names = [v.name for v in groups(seed, True, **TARGETS[target]).free_RVs if v.name != "effect"] + ["rates"]
    settings = {"chains": 4, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata, estimates = METHODS[method](groups(seed, False, **TARGETS[target]), seed, settings)
        said = harness.warned_at(__file__, said)
    draws = draws_of(idata, names)
    flat = draws.reshape(-1, draws.shape[2])
    exact = pm.sample(model=groups(seed, True, **TARGETS[target]), **DRAWS, random_seed=seed + 1)
    mean, sd, variance, rhat = moments(exact, names)
    off, stats = np.abs((flat.mean(axis=0) - mean) / sd), idata["sample_stats"]
    return {
        "target": target, "method": method, "seed": seed, "estimates": estimates, "rhat": measures.largest_rhat(draws),
        "size": measures.smallest_bulk_ess(draws), "accepted": float(np.minimum(stats["accept"], 1.0).mean()),
        "mean": float(off.max()),
        "spread": float(np.abs(flat.std(axis=0) / sd - 1.0).max()), "said": bool(said),
        "true_rhat": rhat, "true_size": float(1.0 / variance.max()),
    }  # fmt: skip


def cells(rows):
    """Return a row of the table."""
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key not in ("target", "method")}
    said = column["said"] | (column["rhat"] > STUCK)  # PyMC says so
    numbers = [len(rows), f"{np.median(column['estimates']):.0f}"]
    numbers += [f"{np.median(column['rhat']):.3f}", f"{column['rhat'].max():.3f}"]
    numbers += [f"{np.median(column['size']):.0f}", f"{column['size'].min():.0f}", f"{column['accepted'].mean():.2f}"]
    for key in ("mean", "spread"):
        numbers += [f"{np.median(column[key]):.2f}", f"{column[key].max():.2f}"]
    return [*numbers, said.sum()]


def main(targets=tuple(TARGETS), methods=tuple(METHODS), first_seed=7000, repetitions=3, again=False, jobs=2):
    pairs = [(t, m) for t, m in PAIRS if t in targets and m in methods]
    tasks = [(*pair, s) for s in range(first_seed, first_seed + repetitions) for pair in pairs]
    rows = ROWS.complete(one_run, tasks, lambda row: f"{row['rhat']:.3f}, {row['mean']:.2f}", again, jobs)
    known = [(pair, [r for r in rows if (r["target"], r["method"]) == pair]) for pair in PAIRS]
    print(TABLE.write([[*pair, *cells(own)] for pair, own in known if own]))


if __name__ == "__main__":
    harness.run(main)
