"""README's picture: a curved posterior by PyMC's steps without a gradient and by ``pk.KernelHMC``, for one budget.

Four chains of 2,000 + 4,000 evaluations each on the banana B(0.1, 100) in eight dimensions, as in
``benchmarks.gradient_free``; what they are worth is read from the table of that script. Saves
``benchmarks/figures/same_budget.png``; some two minutes.
"""

import numpy as np
from matplotlib.figure import Figure

from benchmarks import gradient_free, harness

TARGET = "B(0.1, 100)"
STEPS = {
    "pm.Metropolis": "PyMC's Metropolis",
    "pm.DEMetropolisZ": "PyMC's DEMetropolisZ",
    "pk.KernelHMC": "This package's KernelHMC",
}
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # told apart by all kinds of eyes (Okabe and Ito)


def effective_draws(step):
    """Return the effective draws per 1,000 evaluations that the table has, as a text."""
    rows = harness.rows_between(harness.RESULTS, "gradient-free")
    (number,) = [float(row[2]) for row in rows if row[:2] == [TARGET, step]]
    return f"{number:.0f}" if number >= 1.0 else f"{number:.1f}"


def regions():
    """Return the axes and the log density of the first two coordinates on a grid, 0 at its largest."""
    x, y = np.linspace(-33.0, 33.0, 500), np.linspace(-16.0, 75.0, 700)
    log_density = -0.5 * (x[None, :] ** 2 / 100.0 + (y[:, None] - 0.1 * (x[None, :] ** 2 - 100.0)) ** 2)
    return x, y, log_density


def draw_panel(ax, step, seed):
    """Draw four chains over the region that holds 95 % of the exact distribution."""
    draws = gradient_free.one_repetition(TARGET, step, seed)[1]
    x, y, log_density = regions()
    # -2 log(0.05) is the 95 % quantile of chi-squared with two degrees of freedom.
    ax.contourf(x, y, log_density, levels=[np.log(0.05), 1.0], colors=["0.72"], zorder=0)
    thinned = draws[:, :: max(1, draws.shape[1] // 1000), :2]
    colors = np.repeat(COLORS, thinned.shape[1])
    # In a random order, so that no chain lies on top of the others.
    order = np.random.default_rng(seed).permutation(colors.size)
    ax.scatter(*thinned.reshape(-1, 2)[order].T, c=colors[order], s=6, lw=0, alpha=0.8)
    ax.set(xlim=(-33.0, 33.0), ylim=(-16.0, 75.0))
    ax.set_xlabel("first of eight parameters", fontsize=14)
    ax.tick_params(labelsize=12)
    ax.set_title(
        f"{STEPS[step]}\n{effective_draws(step)} independent draws\nfor 1,000 evaluations\nafter tuning", fontsize=15
    )
    ax.spines[["top", "right"]].set_visible(False)


def main(seed=0):
    figure = Figure(figsize=(11.0, 5.1), layout="constrained")
    axes = figure.subplots(1, len(STEPS), sharey=True)
    for ax, step in zip(axes, STEPS, strict=True):
        draw_panel(ax, step, seed)
        print(step, flush=True)
    axes[0].set_ylabel("second parameter", fontsize=14)
    figure.savefig(harness.FIGURES / "same_budget.png", dpi=110)


if __name__ == "__main__":
    harness.run(main)
