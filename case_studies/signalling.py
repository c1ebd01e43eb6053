# %% [markdown]
# # A signalling pathway: rates on log scales, two of which the data do not know
#
# The protein STAT5 comes in two forms, A and B. A hormone, which decays, makes them phosphorylated pairs in the
# cytoplasm; pairs enter the nucleus, fall apart and leave it (Boehm et al. 2014). Three shares were measured, sixteen
# times each. Six rates and three noise levels are unknown within ten decades. It is the first problem of the
# collection that solvers and optimizers of systems biology are compared on (Hass et al. 2019), and its best known
# negative log likelihood is 138.22.
#
# The equations are solved by SciPy, so PyMC sees a black box of six inputs and 48 outputs. `pk.emulate` learns the
# outputs and leaves the noise levels as they are; `pk.EmulatedNUTS` then makes draws that are exact, one solution each.

# %%
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py
from scipy.integrate import odeint

import pymc_kernel as pk
from benchmarks import harness, measures

HERE = Path(__file__).parent
# Minutes, and per cent: measurementData of Boehm_JProteomeRes2014 in the collection of models in the PEtab format.
MINUTES = np.array([0.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0, 120.0, 160.0, 200.0, 240.0])
MEASURED = np.array([
    [7.90107299873911, 66.3634939682528, 81.1713239165337, 94.7303080627876, 95.1164830493244, 91.44171655392,
     91.2570992263545, 93.672297840992, 88.754232823019, 85.2697032178279, 81.1323953369608, 76.135928475796,
     65.2480591250229, 42.5996587097166, 25.1577975445976, 15.4301823994994],
    [4.59653334288927, 29.6345459874189, 46.0438064695701, 81.9747336591685, 80.5716092952489, 79.0357196371442,
     75.6723803658298, 71.6247198618303, 69.0628632755742, 67.1473843168934, 60.8994762938824, 54.8092577721492,
     43.9812899778025, 29.7714581636675, 20.089016562771, 10.961845166698],
    [14.7231682180584, 33.762342293107, 36.7998512942493, 49.7176022859654, 46.9281200952955, 47.8365745550135,
     46.9287272497385, 40.5977529351181, 43.783663885071, 44.4573876523855, 41.3271592618297, 41.0627332148332,
     39.2358300289377, 36.6194605442418, 34.8937144010561, 32.2110771608676],
])  # fmt: skip
SHARES = ["phosphorylated A", "phosphorylated B", "A of all"]
RATES = ["decay", "export, mixed", "export, equal", "import, mixed", "import, equal", "phosphorylation"]
# The best values that were published, of rates and of noise levels.
BEST_RATES = np.array([
    0.026982514033029, 1.00067973851508e-5, 0.006170228086381, 0.0163679184468, 97749.3794024716, 15766.5070195731,
])  # fmt: skip
BEST_NOISE = np.array([3.85261197844677, 6.59147818673419, 3.15271275648527])
BEST = 138.22  # negative log likelihood there
TOTAL, SHARE_OF_A, SEEN = 207.6, 0.693, 0.107  # molecules of STAT5; the share of A; how much of A is seen as such
CYTOPLASM, NUCLEUS = 1.4, 0.45  # volumes


# %% [markdown]
# ## The black box


# %%
@numba.njit(cache=True)
def change(state, minute, rates):
    """Return the change a minute of A, B, their pairs AA, AB and BB, and of these in the nucleus."""
    decay, export_mixed, export_equal, import_mixed, import_equal, phosphorylation = rates
    a, b, aa, ab, bb, inner_aa, inner_ab, inner_bb = state
    hormone = 1.25e-7 * np.exp(-decay * minute) * phosphorylation
    makes_aa, makes_ab, makes_bb = hormone * a * a, hormone * a * b, hormone * b * b
    out_aa, out_ab, out_bb = export_equal * inner_aa, export_mixed * inner_ab, export_equal * inner_bb
    ratio = NUCLEUS / CYTOPLASM
    return np.array([
        ratio * (2.0 * out_aa + out_ab) - 2.0 * makes_aa - makes_ab,
        ratio * (2.0 * out_bb + out_ab) - 2.0 * makes_bb - makes_ab,
        makes_aa - import_equal * aa,
        makes_ab - import_mixed * ab,
        makes_bb - import_equal * bb,
        import_equal * aa / ratio - out_aa,
        import_mixed * ab / ratio - out_ab,
        import_equal * bb / ratio - out_bb,
    ])  # fmt: skip


def shares(log_rates):
    """Return what is measured (3, 16), in per cent, by logarithms of the rates to base ten."""
    first = np.array([TOTAL * SHARE_OF_A, TOTAL * (1.0 - SHARE_OF_A), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    solved, how = odeint(
        change,
        first,
        MINUTES,
        args=(10.0 ** np.asarray(log_rates),),
        full_output=True,
        rtol=1e-8,
        atol=1e-8,
        mxstep=10_000,
    )
    if how["message"] != "Integration successful.":
        return np.full((3, MINUTES.size), np.nan)
    a, b, aa, ab, bb = solved[:, :5].T
    seen_a, seen_b = SEEN * (a + 2.0 * aa), (1.0 - SEEN) * (b + 2.0 * bb)
    return 100.0 * np.stack([
        (ab + 2.0 * SEEN * aa) / (ab + seen_a),
        (ab + 2.0 * (1.0 - SEEN) * bb) / (ab + seen_b),
        (ab + seen_a) / (2.0 * ab + seen_a + seen_b),
    ])  # fmt: skip


solver = wrap_py([pt.dvector], [pt.dmatrix])(shares)


def pathway():
    """Return the model: rates and noise levels within ten decades, as in the collection."""
    with pm.Model(coords={"rate": RATES, "share": SHARES, "minute": MINUTES}) as model:
        log_rate = pm.Uniform("log_rate", -5.0, 5.0, dims="rate")
        log_noise = pm.Uniform("log_noise", -5.0, 5.0, dims="share")
        curves = pm.Deterministic("curves", solver(log_rate), dims=("share", "minute"))
        pm.Normal("measured", curves, (10.0**log_noise)[:, None], observed=MEASURED, dims=("share", "minute"))
    return model


# %% [markdown]
# ## Is it the published model?


# %%
def negative_log_likelihood():
    """Return it at the best values that were published."""
    residuals = (MEASURED - shares(np.log10(BEST_RATES))) / BEST_NOISE[:, None]
    return float(
        0.5 * (residuals**2).sum() + MINUTES.size * np.log(BEST_NOISE).sum() + 0.5 * MEASURED.size * np.log(2 * np.pi)
    )


# %% [markdown]
# ## The posterior
#
# Optimizers need many starts to find this optimum. A search may begin where they ended, half a decade inside of the
# bounds; one from the prior stands beside it.


# %%
def near_the_best():
    """Return values to begin at."""
    return {"log_rate": np.clip(np.log10(BEST_RATES), -4.5, 4.5), "log_noise": np.log10(BEST_NOISE)}


def learned(start, evaluations, seed):
    """Return the emulated model, and seconds."""
    began = time.perf_counter()
    emulated = pk.emulate(pathway(), evaluations, start=start, random_seed=seed, progressbar=False)
    return emulated, time.perf_counter() - began


def sampled(emulated, seed, draws, exact):
    """Return draws of the emulated model, or exact ones, and seconds."""
    began = time.perf_counter()
    settings = {"chains": 4, "cores": 1, "progressbar": False, "random_seed": seed, "compute_convergence_checks": False}
    with emulated:
        # Not jittered: a unit of the unconstrained scale is decades here, to where nothing was evaluated.
        how = {"step": pk.EmulatedNUTS(emulated)} if exact else {"init": "adapt_diag"}
        idata = pm.sample(draws, tune=300 if exact else 1000, **settings, **how)
    return idata, time.perf_counter() - began


def parameters(idata):
    """Return draws (chain, draw, 9)."""
    posterior = idata["posterior"]
    return np.concatenate([posterior["log_rate"].values, posterior["log_noise"].values], axis=-1)


def picture(idata):
    """Save curves over data, and what is known of the rates."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    axes = axes.ravel()
    posterior = idata["posterior"].to_dataset().stack(sample=("chain", "draw")).isel(sample=slice(None, None, 40))
    for axis, share, values in zip(axes, SHARES, MEASURED, strict=False):
        axis.plot(MINUTES, posterior["curves"].sel(share=share).values, color="C0", alpha=0.08)
        axis.plot(MINUTES, values, "ko", markersize=4)
        axis.set(title=share, xlabel="minutes", ylabel="per cent", ylim=(0.0, 105.0))
    rates = parameters(idata).reshape(-1, 9)[:, :6]
    axes[3].violinplot([rates[:, i] for i in range(6)], orientation="horizontal", showextrema=False)
    axes[3].plot(np.log10(BEST_RATES), np.arange(1, 7), "r|", markersize=12, label="published optimum")
    axes[3].set(title="logarithms of rates, to base ten", yticks=np.arange(1, 7), yticklabels=RATES, xlim=(-5.0, 5.0))
    axes[3].invert_yaxis()
    axes[3].legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(HERE / "figures" / "signalling.png", dpi=100)
    plt.close(figure)


HEADER = (
    "draws",
    "start",
    "solutions",
    "distance",
    "said",
    "R-hat",
    "effective draws",
    "mean off",
    "spread off",
    "minutes",
)
TABLE = harness.Table("signalling", HEADER)


def row(name, start, solutions, emulated, said, draws, exact, seconds):
    """Return a row: how far draws (chain, draw, 9) are from exact ones, in standard deviations of these."""
    mean, sd = exact.mean(axis=(0, 1)), exact.std(axis=(0, 1))
    off = np.abs((draws.mean(axis=(0, 1)) - mean) / sd).max()
    spread = np.abs(draws.std(axis=(0, 1)) / sd - 1.0).max()
    size = measures.smallest_bulk_ess(draws)
    rhat = measures.largest_rhat(draws)
    return [
        name, start, solutions, f"{emulated.emulation.distance:.2f}", said, f"{rhat:.3f}", f"{size:.0f}",
        f"{off:.2f}", f"{spread:.2f}", f"{seconds / 60:.1f}",
    ]  # fmt: skip


# %%
def main(evaluations=250, draws=1000, seed=1):
    """Learn from both starts, draw, compare with exact draws, write the table and the picture."""
    found = negative_log_likelihood()
    print(f"negative log likelihood at the published optimum: {found:.2f} ({BEST} published)", flush=True)
    runs = {}
    for start, values in (("the optimum", near_the_best()), ("the prior", None)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model, seconds = learned(values, evaluations, seed)
        runs[start] = model, seconds, any("the emulated model" in str(w.message) for w in said)
        print(start, runs[start][0].emulation, flush=True)
    emulated, seconds, said = runs["the optimum"]
    exact, of_exact = sampled(emulated, seed, draws, exact=True)
    truth = parameters(exact)
    rows = []
    for start, (model, of_search, has_said) in runs.items():
        idata, of_draws = sampled(model, seed, draws, exact=False)
        spent, word = model.emulation.num_evaluations, "yes" if has_said else "no"
        rows.append(row("emulated", start, spent, model, word, parameters(idata), truth, of_search + of_draws))
    solutions = emulated.emulation.num_evaluations + 4 * (300 + draws)
    rows.append(
        row("exact", "the optimum", solutions, emulated, "yes" if said else "no", truth, truth, seconds + of_exact)
    )
    rows.sort(key=lambda r: -float(r[7]))
    note = f"Negative log likelihood at the published optimum: {found:.2f} here, {BEST} published."
    print(TABLE.write(rows, note))
    picture(exact)


# %%
if __name__ == "__main__":
    harness.run(main)
