"""Pictures. What they show is computed elsewhere."""

import numpy as np

__all__ = ["plot_score"]

_QUANTILES = (0.005, 0.995)
_PIXELS = 150


def plot_score(surrogate, draws, dims: tuple[int, int] = (0, 1), *, num_arrows: int = 18, ax=None):
    """Draw a learnt log density and its score over draws, two coordinates of the unconstrained space at a time.

    Parameters
    ----------
    surrogate
        A fitted model of ``pymc_kernel.scores``: ``step.surrogate`` after ``sample_khmc``, or one of your own.
    draws : array_like (..., d)
        On the unconstrained scale: ``pk.unconstrained_draws(idata["posterior"].to_dataset(), model)``.
    dims : pair of int
        The coordinates of the picture; the others are held at their medians.
    num_arrows : int
        In each direction.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Where a coordinate does not exist.
    """
    import matplotlib.pyplot as plt

    draws = np.asarray(draws, dtype=float)
    draws = draws.reshape(-1, draws.shape[-1])
    d = draws.shape[1]
    if len(set(dims)) != 2 or not all(isinstance(i, int | np.integer) and 0 <= i < d for i in dims):
        raise ValueError(f"dims must be two different coordinates from 0 to {d - 1}, got {dims!r}.")
    horizontal, vertical = dims
    ranges = np.quantile(draws[:, list(dims)], _QUANTILES, axis=0).T
    middle = np.median(draws, axis=0)
    places = _plane(middle, dims, ranges, num_arrows)[2]
    score = surrogate.score(places)
    across, up, pixels = _plane(middle, dims, ranges, _PIXELS)
    level = surrogate.log_density(pixels).reshape(_PIXELS, _PIXELS)
    # In units of the picture, and by the root of the length: scores in the tails would hide all others.
    arrows = score[:, list(dims)] * np.ptp(ranges, axis=1)
    length = np.linalg.norm(arrows, axis=1, keepdims=True)
    arrows = arrows / np.sqrt(np.maximum(length, 1e-300)) * np.ptp(ranges, axis=1)
    if ax is None:
        _, ax = plt.subplots(figsize=(5.5, 4.5))
    heights = level.max() - np.array([15.0, 10.0, 6.0, 3.0, 1.5, 0.5])
    ax.contourf(across, up, level, levels=[*heights, level.max() + 1e-9], cmap="Blues", extend="min", alpha=0.6)
    shown = draws[:: max(1, len(draws) // 1000)]
    ax.plot(shown[:, horizontal], shown[:, vertical], ".", color="0.25", markersize=2, alpha=0.5)
    ax.quiver(places[:, horizontal], places[:, vertical], *arrows.T, color="C3", angles="xy", width=0.003, headwidth=4)
    ax.set(xlabel=f"coordinate {horizontal}", ylabel=f"coordinate {vertical}", xlim=ranges[0], ylim=ranges[1])
    return ax


def _plane(middle, dims, ranges, num):
    """Return the grids of both coordinates, and their points (num^2, d) with the others as in ``middle``."""
    across, up = (np.linspace(*r, num) for r in ranges)
    places = np.tile(middle, (num**2, 1))
    places[:, dims[0]], places[:, dims[1]] = (g.ravel() for g in np.meshgrid(across, up))
    return across, up, places
