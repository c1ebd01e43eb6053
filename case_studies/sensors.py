# %% [markdown]
# # Where are the sensors? A posterior with many modes
#
# Three sensors of unknown place and two of known place measure distances to each other. A measurement succeeds with a
# probability that falls with the distance, so a missing one tells something too. Two known places leave mirror images:
# the posterior has several modes, each sharp and curved (Strathmann 2018, section 5.3.2, after Ihler et al. 2005). The
# data here are generated from a stated seed. Kernel SMC and four chains of KAMH, 500,000 evaluations of the likelihood
# each; a mode is the side of the line through the known sensors that each of the three is on. The shares of the modes
# and the evidence are known by quadrature. The source prints a variance of .02 for the noise, which is a standard
# deviation of half the sensors' range; here .02 is the standard deviation first, then the variance.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kernel as pk
from benchmarks import harness

HERE = Path(__file__).parent
RANGE, NOISE = 0.3, 0.02
NOISES = {"sensors": NOISE, "sensors-variance": np.sqrt(0.02)}  # by the table that they fill
KNOWN = np.array([[0.3, 0.35], [0.7, 0.65]])
SEED = 17  # two of the sensors measure their distance to both known ones, which leaves each a mirror image
BUDGET = 500_000
DRAWS = 1000
CHAINS = "pk.KAMH, 4 chains"
SMC = {  # kernel, and moves of a particle at each temperature: as many as the budget allows; Hamiltonian ones need less
    "pk.KASMC": (pk.KASMC, 40),
    "pk.ASMC": (pk.ASMC, 40),
    "pk.KernelHMCSMC": (pk.KernelHMCSMC, 5),
}


# %%
def make_data(noise=NOISE):
    """Return true places (3, 2), which pairs have a distance (3, 5), and the distances; known sensors come last."""
    rng = np.random.default_rng(SEED)
    true = rng.uniform(0.1, 0.9, size=(3, 2))
    everyone = np.concatenate([true, KNOWN])
    distance = np.linalg.norm(true[:, None] - everyone, axis=2)
    is_seen = rng.random((3, 5)) < np.exp(-(distance**2) / (2.0 * RANGE**2))
    measured = distance + noise * rng.standard_normal((3, 5))
    # Each pair of unknown sensors counts once, in the upper triangle.
    counted = np.hstack([np.triu(np.ones((3, 3), dtype=bool), 1), np.ones((3, 2), dtype=bool)])
    return true, is_seen, measured, counted


def sensor_model(noise=NOISE):
    """Return the model; its parameter ``place`` is (3, 2)."""
    _, is_seen, measured, counted = make_data(noise)
    with pm.Model() as model:
        place = pm.Normal("place", 0.5, 1.0, shape=(3, 2))
        everyone = pt.concatenate([place, pt.as_tensor(KNOWN)])
        squared = ((place[:, None, :] - everyone[None, :, :]) ** 2).sum(axis=-1)
        seen, other = np.nonzero(counted & is_seen), np.nonzero(counted & ~is_seen)
        near, far = squared[seen], squared[other]
        pm.Potential("measured", pm.logp(pm.Normal.dist(pt.sqrt(near), noise), measured[seen]).sum())
        pm.Potential("seen", (-near / (2.0 * RANGE**2)).sum())
        pm.Potential("missing", pt.log1p(-pt.exp(-far / (2.0 * RANGE**2))).sum())
    return model


def sides(places):
    """Return for each draw (n, 3, 2) a number from 0 to 7: on which side of the known line the three are."""
    along = KNOWN[1] - KNOWN[0]
    off = places - KNOWN[0]
    return ((off[..., 0] * along[1] - off[..., 1] * along[0] > 0) * np.array([1, 2, 4])).sum(axis=-1)


def shares(places):
    """Return the share of draws in each of the eight modes."""
    return np.bincount(sides(places), minlength=8) / len(places)


def exact(noise=NOISE, step=None):
    """Return the shares of the modes and the log evidence by quadrature on a grid, by default .3 of the noise wide.

    The density is a product of factors of one sensor and of two, so that summing over the grid of three is a product of
    matrices: over the cells where a sensor's own factor, of its distances to known sensors, is not negligible.
    """
    _, is_seen, measured, counted = make_data(noise)
    step = 0.3 * noise if step is None else step

    def link(squared, i, j):
        if not counted[i, j]:
            return np.zeros_like(squared)
        if not is_seen[i, j]:
            return np.log1p(-np.exp(-np.maximum(squared, 1e-12) / (2.0 * RANGE**2)))
        off = (measured[i, j] - np.sqrt(squared)) / noise
        return -0.5 * off**2 - np.log(noise * np.sqrt(2.0 * np.pi)) - squared / (2.0 * RANGE**2)

    axis = np.arange(-1.0, 2.0, step)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    cells, own = [], []
    for i in range(3):
        log = -0.5 * ((grid - 0.5) ** 2).sum(axis=1) - np.log(2.0 * np.pi)
        for j in (3, 4):
            log = log + link(((grid - KNOWN[j - 3]) ** 2).sum(axis=1), i, j)
        near = log > log.max() - 20.0
        cells.append(grid[near])
        own.append(np.exp(log[near]))

    def pair(i, j):
        squared = np.maximum(((cells[i][:, None] - cells[j]) ** 2).sum(axis=-1), 0.0)
        return np.exp(link(squared, i, j))

    first, last = pair(0, 1) * own[0][:, None], pair(1, 2) * own[2]
    middle = pair(0, 2)
    mass = np.zeros(8)
    is_left = [sides(np.stack([c] * 3, axis=1)) > 0 for c in cells]
    for mode in range(8):
        a, b, c = (is_left[i] == bool(mode & 1 << i) for i in range(3))
        inner = first[a][:, b].T @ middle[a][:, c]  # (cells of 1, cells of 2)
        mass[mode] = (own[1][b] * (inner * last[b][:, c]).sum(axis=1)).sum()
    return mass / mass.sum(), float(np.log(mass.sum()) + 6.0 * np.log(step))


# %%
def smc_run(seed, kernel=pk.KASMC, moves=40, noise=NOISE):
    """Return places (n, 3, 2), log evidence and evaluations of one run of 1,000 particles."""
    settings = {"num_basis": 500} if kernel is pk.KASMC else {}
    with sensor_model(noise):
        idata = pk.sample_smc(
            DRAWS, kernel, chains=1, cores=1, random_seed=seed, progressbar=False, compute_convergence_checks=False,
            min_moves=moves, max_moves=moves, threshold=0.5, **settings,
        )  # fmt: skip
    stats = idata["smc_stats"]
    return (
        idata["posterior"]["place"].values[0],
        float(stats["log_evidence"].values[0]),
        int(stats["evaluations"].sum()) + DRAWS,
    )


def chains_run(seed, noise=NOISE):
    """Return the places of four chains of KAMH from draws of the prior, (4, n, 3, 2), their first half discarded."""
    rng = np.random.default_rng([seed, 9])
    starts = [{"place": 0.5 + rng.standard_normal((3, 2))} for _ in range(4)]
    with sensor_model(noise):
        idata = pm.sample(
            BUDGET // 8, tune=BUDGET // 8, chains=4, cores=1, step=pk.KAMH(), random_seed=seed, progressbar=False,
            initvals=starts, compute_convergence_checks=False,
        )  # fmt: skip
    return idata["posterior"]["place"].values


def picture(by_smc, by_chains):
    """Save the marginals of both next to each other."""
    true = make_data()[0]
    figure, axes = plt.subplots(1, 2, figsize=(8, 5.2), sharex=True, sharey=True, layout="constrained")
    for axis, places, title in zip(axes, (by_smc, by_chains), ("KASMC", "four chains of KAMH"), strict=True):
        shown = places[:: max(1, len(places) // 3000)]
        for sensor in range(3):
            axis.plot(*shown[:, sensor].T, ".", markersize=2, alpha=0.3, color=f"C{sensor}")
        axis.plot(*true.T, "o", color="black", markersize=6, label="true places of the three sensors")
        axis.plot(*KNOWN.T, "k*", markersize=11, label="places that are known")
        axis.set(title=title, xlim=(0.0, 1.1), ylim=(0.0, 1.1), xlabel="first coordinate", aspect="equal")
    axes[0].set_ylabel("second coordinate")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(HERE / "figures" / "sensors.png", dpi=100)


def cells(places, reference, modes):
    """Return in how many runs every mode has at least a quarter of its share, and the root mean squared error."""
    found = np.array([shares(p) for p in places])[:, modes]
    all_found = (found > 0.25 * reference[modes]).all(axis=1).sum()
    return f"{all_found} of {len(found)}", f"{np.sqrt(((found - reference[modes]) ** 2).mean()):.3f}"


def main(runs=10, methods=(*SMC, CHAINS), tables=tuple(NOISES)):
    """Run all with each size of the noise, write the tables and the picture."""
    for marker in tables:
        first = fill(marker, runs, methods)
        if marker == "sensors" and "pk.KASMC" in first and CHAINS in first:
            picture(first["pk.KASMC"], first[CHAINS])


def fill(marker, runs, methods):
    """Write a table; return the places of the first run by method."""
    noise = NOISES[marker]
    reference, evidence = exact(noise)
    modes = np.flatnonzero(reference > 0.01)
    rows, first = [], {}
    for name in methods:
        if name == CHAINS:
            places, error, evaluations = [chains_run(s, noise).reshape(-1, 3, 2) for s in range(runs)], None, BUDGET
        else:
            places, evidences, counts = zip(*[smc_run(s, *SMC[name], noise) for s in range(runs)], strict=True)
            error, evaluations = f"{np.sqrt(np.mean((np.array(evidences) - evidence) ** 2)):.2f}", np.mean(counts)
        first[name] = places[0]
        rows.append([name, *cells(places, reference, modes), error, f"{evaluations:.0f}"])
        print(*rows[-1], flush=True)
    told = ", ".join(f"{s:.3f}" for s in reference[modes])
    note = f"{runs} runs. By quadrature: shares of the modes {told}, log evidence {evidence:.2f}."
    header = ("method", "runs that found all modes", "error of a mode's share", "RMSE of log evidence", "evaluations")
    harness.Table(marker, header, [(m,) for m in (*SMC, CHAINS)]).write(rows, note)
    return first


# %%
if __name__ == "__main__":
    harness.run(main)
