"""What others make of the same few evaluations: PyVBMC, GPry, emcee, DEMetropolisZ and ``pk.sample_khmc``.

Targets and distance are those of ``few_evaluations``, without noise. All methods begin in the same normal prior and get
50 (d + 2) or 100 (d + 2) evaluations of log prior plus log likelihood, burn-in or tuning included: half of each.

- PyVBMC (variational Bayesian Monte Carlo, Acerbi 2020) has plausible bounds of one standard deviation of the prior
  around its mean, and ends by itself where it thinks that it has converged, so it has one budget.
- GPry (Gammal et al. 2023) takes a uniform prior: a box of three standard deviations around the mean, with the normal
  prior in the likelihood; its first places are within one. It ends by itself, too.
- emcee (Foreman-Mackey et al. 2013): 2 d + 2 walkers from the prior.
- ``pm.DEMetropolisZ`` and ``pk.sample_khmc``: four chains from the prior; the latter wants 50 of tuning a chain, so it
  has no row below 400 evaluations.
- "As many" are runs of ours that end where PyVBMC ended.

Saves ``benchmarks/figures/few_evaluations.png``. Needs the extra: pip install -e '.[rivals]'.
"""

import logging
import warnings
from contextlib import suppress
from importlib import metadata

import numpy as np
import pymc as pm
from matplotlib.figure import Figure

import pymc_kernel as pk
from benchmarks import few_evaluations as few
from benchmarks import harness, measures
from benchmarks.gradient_free import CountedDensity

CHAINS = 4
LEAST = {"sample_khmc": 400}  # evaluations
NAMES = tuple(name for name in few.TARGETS if few.TARGETS[name][0] is not few.of_posteriordb)
OURS, AS_MANY = "sample_surrogate", "as many"
END_BY_THEMSELVES = "PyVBMC", "GPry"
PACKAGES = {"DEMetropolisZ": "pymc", "emcee": "emcee", "PyVBMC": "pyvbmc", "GPry": "gpry"}
BOX = 3.0  # standard deviations of the prior, half a side of GPry's: with five its nested sampler did not end
COLORS = {  # told apart by all kinds of eyes (Okabe and Ito)
    OURS: "#009E73",
    "sample_khmc": "#0072B2",
    "DEMetropolisZ": "#E69F00",
    "emcee": "#CC79A7",
    "PyVBMC": "#000000",
    "GPry": "#D55E00",
}
HEADER = ["posterior", "d", "evaluations", *COLORS]
HEADER += ["PyVBMC's evaluations", "GPry's", "sample_surrogate with as many as PyVBMC"]
HEADER += ["PyVBMC's s", "GPry's s", "sample_surrogate's s"]


def posterior_of(costly):
    """Return log prior plus log likelihood of a target at one place (d,)."""

    def log_density(x):
        row = np.atleast_2d(x)
        return float(costly.prior.log_density(row)[0] + costly.log_likelihood(row)[0])

    return log_density


def by_emcee(density, prior, most, seed):
    """Return the second half of an ensemble's draws."""
    import emcee

    d, rng = prior.num_dims, np.random.default_rng(seed)
    walkers = 2 * d + 2
    sampler = emcee.EnsembleSampler(walkers, d, density.at)
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
    found = VBMC(density.at, start, None, None, bounds[:1], bounds[1:], options=options).optimize()[0]
    return found.sample(few.NUM_DRAWS)[0]


def by_gpry(density, prior, most, seed):
    """Return draws of the learned posterior, by the nested sampler that it chooses."""
    from gpry import Runner
    from gpry.gp_acquisition import GPAcquisitionError

    center = np.full(prior.num_dims, prior.mean)
    box, first = (np.stack([center - h * prior.spread, center + h * prior.spread], axis=1) for h in (BOX, 1.0))
    # At most 30 d^1.5 first evaluations by default, which must not be above all of them.
    options = {"max_total": most, "max_initial": min(most, int(30 * prior.num_dims**1.5))}
    settings = {"options": options, "seed": seed, "plots": False, "verbose": 1}
    runner = Runner(lambda x: density.at(np.array(x)), box, ref_bounds=first, **settings)
    with suppress(GPAcquisitionError):  # it found no more places, and gave up: what it knows by then counts
        runner.run()
    runner.generate_mc_sample()
    found = runner.last_mc_samples()
    weights = np.ones(len(found["X"])) if found["w"] is None else found["w"]
    chosen = np.random.default_rng(seed).choice(len(weights), few.NUM_DRAWS, p=weights / weights.sum())
    return found["X"][chosen]


def by_chains(sample, evaluations_a_draw):
    """Return a method: chains of PyMC from the prior, half of them tuning."""

    def run(density, prior, most, seed):
        with pm.Model() as model:
            pm.Potential("target", density(pm.Flat("x", shape=prior.num_dims)))
        starts = [{"x": x} for x in prior.draw(np.random.default_rng(seed), CHAINS)]
        half = most // (2 * CHAINS * evaluations_a_draw)
        settings = {"chains": CHAINS, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
        idata = sample(half, tune=half, initvals=starts, random_seed=seed, model=model, **settings)
        return idata["posterior"]["x"].values.reshape(-1, prior.num_dims)

    return run


def _by_differential_evolution(draws, *, model, **settings):
    with model:
        return pm.sample(draws, step=pm.DEMetropolisZ(), **settings)


RUNS = {
    "sample_khmc": by_chains(pk.sample_khmc, 1),
    "DEMetropolisZ": by_chains(_by_differential_evolution, 2),  # it evaluates the current place again
    "emcee": by_emcee,
    "PyVBMC": by_pyvbmc,
    "GPry": by_gpry,
}


def measured(name, method, budget, seed):
    """Return the row of one run."""
    costly, (exact, _) = few.target(name), few.truth(name)
    most = budget * (costly.num_dims + 2)
    if method == OURS:
        return _by_us(name, method, budget, seed, most)
    density = CountedDensity(posterior_of(costly))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws, seconds = measures.timed(RUNS[method], density, costly.prior, most, seed)
    key = {"name": name, "method": method, "budget": budget, "seed": seed}
    if method in PACKAGES:
        key["version"] = metadata.version(PACKAGES[method])
    return key | {"evaluations": density.calls, "distance": few.distance(draws, exact), "seconds": seconds}


def _by_us(name, method, budget, seed, evaluations):
    found = few.run(name, 0.0, seed, evaluations, tolerance=0.0)
    return {"name": name, "method": method, "budget": budget, "seed": seed} | found


def measured_as_many(name, method, budget, seed):
    """Return the row of our own run with as many evaluations as PyVBMC took."""
    return _by_us(name, method, budget, seed, ROWS.kept()[name, "PyVBMC", budget, seed]["evaluations"])


ROWS = harness.Rows(
    harness.ROWS / "few_evaluations_rivals.jsonl",
    lambda row: (row["name"], row["method"], row["budget"], row["seed"]),
)
TABLE = harness.Table("few-evaluations-rivals", HEADER)


def found_rows():
    """Return (name, method, budget) -> rows with evaluations, distance and seconds."""
    found = {}
    for row in ROWS.kept().values():
        found.setdefault((row["name"], row["method"], row["budget"]), []).append(row)
    return found


def median(rows, key, form="{:.3f}"):
    """Return the median of a key as a text."""
    return form.format(np.median([row[key] for row in rows])) if rows else ""


def cells(name, budget, found):
    """Return a row of the table."""
    d = few.target(name).num_dims
    rows = {method: found.get((name, method, budget), []) for method in COLORS}
    distances = [median(group, "distance") for group in rows.values()]
    as_many = median(found.get((name, AS_MANY, budget), []), "distance")
    taken = [median(rows[method], "evaluations", "{:.0f}") for method in END_BY_THEMSELVES]
    seconds = [median(rows[method], "seconds", "{:.0f}") for method in (*END_BY_THEMSELVES, OURS)]
    return [name, d, budget * (d + 2), *distances, *taken, as_many, *seconds]


def versions():
    """Return the rivals with their versions, as a text."""
    of_rows = {(row["method"], row["version"]) for row in ROWS.kept().values() if "version" in row}
    return ", ".join(f"{method} of {PACKAGES[method]} {version}" for method, version in sorted(of_rows))


def excess(row):
    """Return by how much the best of the others is closer than we are."""
    ours, *others = row[3 : 3 + len(COLORS)]
    others = [float(cell) for cell in others if cell]
    return float(ours) - min(others) if ours and others else -np.inf


def draw(names, found):
    """Save distances against evaluations, a panel a target."""
    columns = 4
    figure = Figure(figsize=(11.0, 2.3 * -(-len(names) // columns) + 0.6), layout="constrained")
    axes = figure.subplots(-(-len(names) // columns), columns, sharey=True, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        for method, color in COLORS.items():
            keys = [(name, method, budget) for budget in few.BUDGETS]
            keys = [(name, AS_MANY, few.BUDGETS[0]), *keys] if method == OURS else keys
            groups = [found[key] for key in keys if key in found]
            if groups:
                x = [np.median([row["evaluations"] for row in rows]) for rows in groups]
                y = [np.median([row["distance"] for row in rows]) for rows in groups]
                ax.plot(x, y, "D" if method in END_BY_THEMSELVES else "o-", color=color, label=method, ms=5)
        d = few.target(name).num_dims
        ax.axhline(0.02, color="0.6", lw=1, ls=":")
        ax.set(yscale="log", ylim=(0.012, 1.0), xlim=(0, None))
        ax.set_yticks([0.02, 0.1, 0.5], ["0.02", "0.1", "0.5"])
        ax.set_title(f"{name.rstrip(' 0123456789')}, {d} parameters", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    figure.supxlabel("evaluations of the likelihood", fontsize=11)
    figure.supylabel("distance from the posterior\n(0.02: exact draws)", fontsize=11)
    drawn = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=len(COLORS), frameon=False)
    figure.savefig(harness.FIGURES / "few_evaluations.png", dpi=110)


def main(names=NAMES, methods=(OURS, *RUNS), seeds=2, jobs=1, again=False):
    """Measure what is asked for and has no row yet; write the table, our largest excess first, and the figure."""
    logging.getLogger("VBMC").setLevel(logging.ERROR)
    for name in names:
        few.truth(name)
    budgets = {method: few.BUDGETS[:1] if method in END_BY_THEMSELVES else few.BUDGETS for method in methods}
    wanted = [
        (name, method, budget, seed)
        for method in methods
        for name in names
        for budget in budgets[method]
        for seed in range(seeds)
        if budget * (few.target(name).num_dims + 2) >= LEAST.get(method, 0)
    ]
    ROWS.complete(measured, wanted, lambda row: f"{row['distance']:.3f} {row['evaluations']}", again, jobs)
    ended = [(n, AS_MANY, b, s) for n, method, b, s in ROWS.kept() if method == "PyVBMC" and n in names]
    ROWS.complete(measured_as_many, ended, lambda row: f"{row['distance']:.3f} {row['evaluations']}", again, jobs)
    found = found_rows()
    named = [n for n in NAMES if any((n, m, few.BUDGETS[0]) in found for m in RUNS)]
    table = [cells(name, budget, found) for name in named for budget in few.BUDGETS]
    below = f"Medians over seeds. s: a method's own time. {versions()}."
    TABLE.write(sorted(table, key=excess, reverse=True), below=below)
    if compared := [n for n in named if (n, "PyVBMC", few.BUDGETS[0]) in found]:
        draw(compared, found)


if __name__ == "__main__":
    harness.run(main)
