"""Evaluations of a model so far, and what its parts are learned from."""

from collections.abc import Mapping, Sequence

import numpy as np

from pymc_kernel.emulation import fit_outputs, noisy_variance, variance_bound
from pymc_kernel.emulation.fitted_outputs import BOUND_ROWS
from pymc_kernel.emulation.outputs import LEARN_ROWS, held_out_outputs
from pymc_kernel.plugin.emulation.coarse import Coarse
from pymc_kernel.plugin.emulation.evaluated import Evaluated
from pymc_kernel.plugin.emulation.parts import Part
from pymc_kernel.plugin.emulation.structure import Unknown
from pymc_kernel.scores.value_regression import depth_of_draws

_FOLDS = 10  # of cross-validation


class Record:
    """Where a model was evaluated, and what its black boxes were given and returned there."""

    def __init__(self, unknown: Unknown, coarse: Mapping[int, Coarse], num_coordinates: int):
        self.unknown, self.coarse = unknown, coarse
        self.positions = np.empty((0, num_coordinates))
        self.evaluated: list[Evaluated] = []
        self.is_chosen: list[bool] = []  # of each, whether its place was one that cannot be predicted from others
        self._rough: list[dict] = []  # of each, outputs (b, q) of the cheap versions of calls

    def __len__(self) -> int:
        return len(self.evaluated)

    def add(self, places: np.ndarray, evaluated: list[Evaluated], is_chosen: np.ndarray) -> None:
        """Add evaluations at new places (n, d); repeated ones at a place follow each other."""
        repeats = self.unknown.repeats
        self.positions = np.concatenate([self.positions, np.repeat(places, repeats, axis=0)])
        self.evaluated += evaluated
        self.is_chosen += np.repeat(is_chosen, repeats).tolist()
        self._rough += [{i: c.rows(e.inputs[i]) for i, c in self.coarse.items()} for e in evaluated]

    @property
    def log_densities(self) -> np.ndarray:
        """True log densities, (n,)."""
        return np.array([e.log_density for e in self.evaluated])

    @property
    def levels(self) -> np.ndarray:
        """True log densities of places, or means of two estimates each."""
        return self.log_densities.reshape(-1, self.unknown.repeats).mean(axis=1)

    @property
    def num_failed(self) -> int:
        """Evaluations without a finite value."""
        return int((~np.isfinite(self.log_densities)).sum())

    def best_places(self, count: int) -> np.ndarray:
        """Return the places (count, d) with the largest true log density, or mean of two estimates.

        Nobody knows how likely a place with an estimate of zero is: such places come last.
        """
        levels = self.levels
        if self.unknown.estimated:
            levels = np.where(np.isfinite(levels), levels, np.finfo(float).min)
        return self.positions[:: self.unknown.repeats][best_of(levels)[:count]]

    def fits(self, margins: Sequence[np.ndarray], rng: np.random.Generator) -> list[tuple] | None:
        """Return the arguments of ``LearnedPart.renew`` of each part, except ``steps``; None for too few rows.

        By ``margins`` (n, b), in nats, rows of each part exceed the lowest log density of draws. Rows with margins of
        at least zero are learned, others only if these are too few to learn the smoothness from: to fit a function
        elsewhere costs accuracy here.
        """
        fits = []
        for part, margin in zip(self.unknown.parts, margins, strict=True):
            inputs, outputs, is_factor = self.values(part)
            has_values = np.isfinite(inputs).all(axis=2) & np.isfinite(outputs).all(axis=2)
            # If none of several rows has a value, nobody knows which one failed.
            has_failed = np.isfinite(inputs).all(axis=2) & ~has_values
            has_failed &= has_values.any(axis=1, keepdims=True) | (has_values.shape[1] == 1)
            is_noisy = part.like.is_estimate
            every = slice(None, None, 1 if is_noisy else self.unknown.repeats)  # exact values are the same twice
            of_part, known, bounds = [], [], []
            for own in part.masks:
                of_rows = inputs, outputs, has_values, has_failed, margin
                x, y, good, bad, own_margin = (v[every][:, own] for v in of_rows)
                bad = bad & (not is_noisy)
                known.append((x[good | bad], bad[good | bad]))
                good = nearest_rows(good, own_margin, LEARN_ROWS)
                if good.sum() < x.shape[2] + 2:
                    return None
                near = self._near()[every][good[:, 0]] if part.is_row else None
                kind = part.like.block, near, part.is_term, is_noisy
                of_part.append(fit_outputs(x[good], y[good], rng, *kind))
                if part.has_penalty:
                    near_rows = x[nearest_rows(good, own_margin, BOUND_ROWS)]
                    bounds.append(noisy_variance(of_part[-1]) if is_noisy else variance_bound(of_part[-1], near_rows))
            fits.append((of_part, known, is_factor, bounds))
        return fits

    def _near(self):
        """Return which evaluations (n,) may lie in the posterior, and the next best: enough to find directions."""
        levels, (count, num_coordinates) = self.log_densities, self.positions.shape
        levels = np.where(np.isfinite(levels), levels, np.finfo(float).min)
        least = lowest_like(levels.max(), num_coordinates)
        return nearest_rows(np.full(count, True), levels - least, 2 * (num_coordinates + 1))

    def held_out(self, margins: Sequence[np.ndarray], fits) -> list[np.ndarray]:
        """Return outputs (n, b, q) of each part at all places, predicted by fits to others; NaN where one failed."""
        folds = np.arange(len(self)) // self.unknown.repeats % _FOLDS
        rows_of_parts = []
        for part, margin, (of_part, *_) in zip(self.unknown.parts, margins, fits, strict=True):
            inputs, outputs, _ = self.values(part)
            predicted = np.full(outputs.shape, np.nan)
            for mine, fit in zip(part.masks, of_part, strict=True):
                x, y = inputs[:, mine], outputs[:, mine]
                is_finite = np.isfinite(x).all(axis=2) & np.isfinite(y).all(axis=2)
                learned = nearest_rows(is_finite, margin[:, mine], LEARN_ROWS)
                fold = np.broadcast_to(folds[:, None], learned.shape)[learned]
                block = np.full(y.shape, np.nan)
                block[learned] = held_out_outputs(fit, x[learned], y[learned], fold)
                if (others := is_finite & ~learned).any():
                    block[others] = fit(x[others])
                predicted[:, mine] = block
            rows_of_parts.append(predicted)
        return rows_of_parts

    def values(self, part: Part) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return inputs and targets of the fit (evaluations, rows, k or q) of a part, and whether targets are factors.

        Targets are outputs, or with a cheap version their ratios to its outputs if all are positive, else differences.
        """
        members = [(i, self.unknown.calls[i]) for i in part.calls]
        inputs = np.array([self.unknown.inputs_of(part, e) for e in self.evaluated])
        outputs = np.array([np.concatenate([c.outputs(e.outputs[i]) for i, c in members]) for e in self.evaluated])
        if part.like.is_estimate:
            outputs = with_zeros(outputs, part.functions)
        has_rough = np.concatenate([np.full(c.num_rows, i in self.coarse) for i, c in members])
        if not has_rough.any():
            return inputs, outputs, False
        rough = np.zeros_like(outputs)
        rough[:, has_rough] = [np.concatenate([of[i] for i, _ in members if i in of]) for of in self._rough]
        known = np.concatenate([rough[:, has_rough], outputs[:, has_rough]])
        if (known[np.isfinite(known)] > 0.0).all():
            return inputs, outputs / np.where(has_rough[:, None], rough, 1.0), True
        return inputs, outputs - rough, False


def nearest_rows(is_known, margin, least):
    """Return which known rows (n, b) have a margin (n, b) of at least zero, or one of the ``least`` largest margins."""
    known = np.sort(margin[is_known])
    return is_known & (margin >= min([0.0, *known[-least:][:1]]))


def best_of(levels: np.ndarray) -> np.ndarray:
    """Return the indices (m,) of finite levels (n,), the largest first."""
    finite = np.flatnonzero(np.isfinite(levels))
    return finite[np.argsort(-levels[finite])]


def lowest_like(largest: float, num_coordinates: int) -> float:
    """Return the log density below which hardly any draw of a normal distribution with this maximum lies."""
    return largest - depth_of_draws(num_coordinates)


def with_zeros(log_estimates: np.ndarray, functions: np.ndarray) -> np.ndarray:
    """Return log estimates (n, b, 1), with zeros put a nat below the lowest other one of their function (b,).

    Without them a likelihood would look high where nearly all estimates are zero.
    """
    out = log_estimates.copy()
    for function in np.unique(functions):
        own = out[:, functions == function]
        if (finite := np.isfinite(own)).any():
            out[:, functions == function] = np.where(np.isneginf(own), own[finite].min() - 1.0, own)
    return out
