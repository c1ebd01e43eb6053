"""The log density of a model whose black boxes return given numbers: predictions, held-out ones, or random draws."""

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor

from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.emulation.coarse import Coarse, is_difference
from pymc_kernel.plugin.emulation.emulated_model import GivenRows, model_with
from pymc_kernel.plugin.emulation.evaluated import Evaluated
from pymc_kernel.plugin.emulation.structure import Unknown
from pymc_kernel.plugin.model.interpreter import of_position
from pymc_kernel.plugin.model.log_density import without_gradient
from pymc_kernel.plugin.model.priors import initial_position

_STEP = 1e-3  # in units of the reach of outputs: differences are far above rounding, their error far below a third


class GivenOutputs:
    """A model with given numbers, ``rows`` of each part, in place of the outputs of its black boxes.

    In its ``unknown``, ``is_term`` of each part is as the log density has it. Raises ``ValueError`` for a model that
    has terms without gradient besides its black boxes.
    """

    def __init__(self, model: pm.Model, unknown: Unknown, coarse: Mapping[int, Coarse]):
        self.rows = [GivenRows(part) for part in unknown.parts]
        self._rows = [given.rows for given in self.rows]
        self._model, _ = model_with(model, unknown.calls, unknown.parts, self.rows, coarse)
        left = without_gradient(self._model, self._model.continuous_value_vars)
        if left:
            raise ValueError(
                f"besides its black boxes, this model has log density terms without gradient ({', '.join(left)}), "
                "which pk.emulate does not learn: use pk.sample_khmc(). A prior whose logp calls a black box may "
                "be a pm.Potential of what the box returns."
            )
        self._point, log_density = model.initial_point(random_seed=0), self._model.logp()
        self._density = of_position(self._model, self._point, [log_density])
        self.unknown = unknown._replace(parts=self._with_terms(unknown.parts, log_density, coarse))
        self._are_terms = all(part.is_term for part in self.unknown.parts)
        self._known = np.empty(0), np.nan  # the last position, and the log density there with outputs of zero

    def _with_terms(self, parts, log_density, coarse):
        """Return the parts, with ``is_term`` true where the log density has the one output of each row as a summand.

        Then its slope by the output is one, however large that is. Errors of a cheap version are no log likelihood.
        """
        pairs = enumerate(zip(parts, self._rows, strict=True))
        rows_of = {i: rows for i, (part, rows) in pairs if rows.type.shape[1] == 1 and not is_difference(part, coarse)}
        if not rows_of:
            return parts
        slopes = pytensor.grad(log_density, list(rows_of.values()))
        slopes_at, place = of_position(self._model, self._point, slopes), initial_position(self._model)
        are_terms = np.full(len(rows_of), True)
        largest = np.finfo(float).max  # no data are beyond it
        for level in (-largest, 1.0, largest):
            for rows in rows_of.values():
                rows.set_value(np.full(rows.type.shape, level))
            are_terms &= [bool((slope == 1.0).all()) for slope in slopes_at(place)]
        terms = dict(zip(rows_of, are_terms.tolist(), strict=True))
        return [part._replace(is_term=terms.get(number, False)) for number, part in enumerate(parts)]

    def log_density(self, rows_of_parts: Sequence[np.ndarray], position: np.ndarray) -> float:
        """Return the log density at a position (d,) with these outputs (b, q) of the parts.

        Where each output is a summand, the other terms are evaluated only once for repeated calls at one position.
        """
        if not self._are_terms:
            return self._density_with(rows_of_parts, position)
        if not np.array_equal(position, self._known[0]):
            nothing = [np.zeros(rows.type.shape) for rows in self._rows]
            self._known = np.copy(position), self._density_with(nothing, position)
        return self._known[1] + float(sum(rows.sum() for rows in rows_of_parts))

    def _density_with(self, rows_of_parts, position):
        for shared, rows in zip(self._rows, rows_of_parts, strict=True):
            shared.set_value(rows)
        return float(self._density(position)[0])

    def has_density(self, rows_of_places: Sequence, positions: np.ndarray, number: int, rows: np.ndarray) -> np.ndarray:
        """Return whether the density at positions (n, d) is above zero, with ``rows`` as the outputs of one part."""
        asked = zip(rows_of_places, positions, rows, strict=True)
        every = slice(None)
        return np.isfinite([self._with_row(parts, position, number, every, own) for parts, position, own in asked])

    def learned_outputs(self, inputs: Sequence[np.ndarray], fits) -> list[np.ndarray]:
        """Return the outputs (b, q) of each part at inputs (b, k) by ``fits``; NaN where inputs are not finite."""
        rows_of_parts = [np.full(rows.type.shape, np.nan) for rows in self._rows]
        for part, rows, outputs, (of_part, *_) in zip(self.unknown.parts, inputs, rows_of_parts, fits, strict=True):
            for own, fit in zip(part.masks, of_part, strict=True):
                if (mine := own & np.isfinite(rows).all(axis=1)).any():
                    outputs[mine] = fit(rows[mine])
        return rows_of_parts

    def errors(self, positions: np.ndarray, evaluated: Sequence[Evaluated], predicted: Sequence) -> tuple:
        """Return errors (n, 2, 1 + f) by the estimates of 2 n evaluations, and the inputs (n, k) of f estimated terms.

        At each of the positions (2 n, d), learned outputs (b, q) of each part are ``predicted``.
        """
        calls, parts, estimated = self.unknown.calls, self.unknown.parts, self.unknown.estimated
        errors = np.empty((len(evaluated), 1 + len(estimated)))
        for row, x, e, rows_of_parts in zip(errors, positions, evaluated, predicted, strict=True):
            learned = {}
            for part, rows in zip(parts, rows_of_parts, strict=True):
                if part.like.is_estimate:  # calls of one row and one number each
                    learned |= dict(zip(part.calls, rows.ravel(), strict=True))
            row[1:] = [e.outputs[i][0].item() - learned[i] for i in estimated]
            with np.errstate(invalid="ignore"):  # an estimate of zero
                row[0] = e.log_density - self.log_density(rows_of_parts, x) - row[1:].sum()
        inputs = [np.array([calls[i].inputs(e.inputs[i])[0] for e in evaluated[::2]]) for i in estimated]
        return errors.reshape(-1, 2, errors.shape[1]), inputs

    def levels(self, rows_of_parts: Sequence[np.ndarray], position: np.ndarray, outputs, number: int) -> np.ndarray:
        """Return log densities (n, b) at a position (d,); entry (i, b) has ``outputs[i, b]`` as row b of a part.

        All else is as in ``rows_of_parts``, (b, q) of each. Minus infinity where that row is not finite.
        """
        levels = np.full(outputs.shape[:2], -np.inf)
        for i, b in np.argwhere(np.isfinite(outputs).all(axis=2)):
            levels[i, b] = self._with_row(rows_of_parts, position, number, b, outputs[i, b])
        return np.where(np.isfinite(levels), levels, -np.inf)

    def _with_row(self, rows_of_parts, position, number, b, row):
        """Return the log density at a position (d,) with outputs of parts, one of which has other rows at ``b``."""
        rows = rows_of_parts[number].copy()
        rows[b] = row
        return self.log_density([*rows_of_parts[:number], rows, *rows_of_parts[number + 1 :]], position)

    def curvatures(self, positions: np.ndarray, inputs: Sequence, fits, rng: np.random.Generator) -> list[np.ndarray]:
        """Return minus the second derivatives of the log density by the outputs of each row, summed; means over places.

        For each part (b,). Outputs are in units of their reach, on the scale on which they are learned. Negative means
        become zero; parts that are terms, a single row or without penalty have zeros. Second differences along random
        signs are exact for a likelihood of independent data; they take two evaluations of the log density for each row
        and place. At each of the positions (n, d) there are ``inputs`` (b, k) of each part; ``fits`` as of
        ``Record.fits``.
        """
        parts = self.unknown.parts
        sums = [np.zeros(len(part.functions)) for part in parts]
        curved = [i for i, part in enumerate(parts) if part.has_penalty and not (part.is_row or part.is_term)]
        if not curved:
            return sums
        for position, of_place in zip(positions, inputs, strict=True):
            rows_of_parts = self.learned_outputs(of_place, fits)
            middle = self.log_density(rows_of_parts, position)
            for number in curved:
                of_part, *_ = fits[number]
                for b, (function, row) in enumerate(zip(parts[number].functions, rows_of_parts[number], strict=True)):
                    signs = rng.choice([-_STEP, _STEP], row.size)
                    moved = (of_part[function].moved(row, step) for step in (signs, -signs))
                    changed = [self._with_row(rows_of_parts, position, number, b, other) for other in moved]
                    second = 2.0 * middle - sum(changed)
                    sums[number][b] += second / _STEP**2 if np.isfinite(second) else 0.0
        return [np.maximum(s / len(positions), 0.0) for s in sums]

    @one_blas_thread
    def versions(self, position: np.ndarray, inputs, fits, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return log densities (number,) at a position (d,) with outputs drawn at random from what is learned.

        Minus infinity where one is not finite, as for a probability above one. ``inputs`` (b, k) are those of each part
        there, ``fits`` as of ``Record.fits``.
        """
        rows_of_parts, functions = [np.empty(rows.type.shape) for rows in self._rows], []
        for part, rows, outputs, (of_part, *_) in zip(self.unknown.parts, inputs, rows_of_parts, fits, strict=True):
            masks = zip(part.masks, of_part, strict=True)
            functions += [(outputs, mine, fit.random_at(rows[mine])) for mine, fit in masks]
        found = np.empty(number)
        for i in range(number):
            for outputs, mine, random in functions:
                outputs[mine] = random(rng)
            found[i] = self.log_density(rows_of_parts, position)
        return np.where(np.isfinite(found), found, -np.inf)
