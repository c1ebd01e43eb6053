"""The log density that is lost, on average, by what is not known of a learned part.

Where outputs h have errors of variance v, a log likelihood with curvature -c is on average v c / 2 lower than at their
mean. Where h is the log likelihood itself, v / 2 less than its mean is the logarithm of the harmonic mean of what the
likelihood may be. Without this loss an emulated model has modes where nothing was evaluated.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_kernel.emulation import VarianceBound
from pymc_kernel.plugin.emulation.model_graph import with_silent_potential

NAME = "emulation_penalty"


class Penalty:
    """The loss of a part as a graph of its scaled inputs; what it depends on is in shared variables.

    Parameters
    ----------
    functions : ndarray of int (b,)
        Of each row.
    name : str
        Of the shared variables.
    num_inputs : int
    """

    def __init__(self, functions: np.ndarray, name: str, num_inputs: int):
        self._functions, self._num_functions = functions, int(functions.max()) + 1
        sizes = {"scaled": (None, num_inputs), "slopes": (None, num_inputs), "reduction": (None, None), "root": ()}
        self._shared = shared_arrays(f"{name}_penalty", self._num_functions, sizes, 0.0)
        self._curvatures = pytensor.shared(np.zeros(len(functions)), name=f"{name}_curvatures")

    def clear(self) -> None:
        """Lose nothing."""
        self._curvatures.set_value(np.zeros(len(self._functions)))

    def renew(
        self, bounds: Sequence[VarianceBound], inverse_length_scales: Sequence[np.ndarray], curvatures: np.ndarray
    ) -> None:
        """Put in the bounds and inverse length scales (k,) of each function, and curvatures (b,) of the log density.

        These are minus its second derivatives by the outputs of each row, in units of their reach, summed; or the
        squared amplitude of a log likelihood.
        """
        most = max(len(b.points) for b in bounds)
        values: dict[str, list] = {field: [] for field in self._shared}
        for bound, inverse in zip(bounds, inverse_length_scales, strict=True):
            rest, root = most - len(bound.points), np.sqrt(bound.quadratic)
            # Points that are added have no share of the reduction.
            points = np.pad(bound.points, ((0, rest), (0, 0)))
            values["scaled"].append(points * inverse)
            values["slopes"].append(points * root / points.shape[1])
            values["reduction"].append(np.pad(bound.reduction, (0, rest)))
            values["root"].append(root)
        for field, shared in self._shared.items():
            shared.set_value(np.array(values[field]))
        self._curvatures.set_value(curvatures)

    def __call__(self, z, s):
        """Return the loss at scaled inputs z (b, k), and s (b, k), these times inverse length scales."""
        scaled, slopes, reduction, root = of_rows(self._shared, self._functions).values()
        if self._num_functions == 1:
            squared = (s**2).sum(axis=1)[:, None] + (scaled**2).sum(axis=1) - 2.0 * (s @ scaled.T)
            covariance = pt.exp(-0.5 * pt.maximum(squared, 0.0)) + (root + z @ slopes.T) ** 2
            explained = ((covariance @ reduction.T) ** 2).sum(axis=1)
        else:
            squared = ((s[:, None, :] - scaled) ** 2).sum(axis=2)
            covariance = pt.exp(-0.5 * squared) + (root[:, None] + (z[:, None, :] * slopes).sum(axis=2)) ** 2
            explained = ((covariance[:, None, :] * reduction).sum(axis=2) ** 2).sum(axis=1)
        variance = 1.0 + (root * (1.0 + (z**2).mean(axis=1))) ** 2 - explained
        return 0.5 * (self._curvatures * variance).sum()


def with_penalties(model: pm.Model, losses: Sequence) -> TensorSharedVariable | None:
    """Add the sum of losses to a model; return how much it counts, a shared variable that is one, or None of none."""
    if not losses:
        return None
    share = pytensor.shared(1.0, name=f"share_of_{NAME}")
    with_silent_potential(model, NAME, -share * sum(losses))
    return share


def shared_arrays(
    name: str, num_functions: int, sizes: Mapping[str, tuple[int | None, ...]], value: float
) -> dict[str, TensorSharedVariable]:
    """Return shared variables by field, each (functions, *size) and full of a value; of length one where it is None."""
    return {
        field: pytensor.shared(
            np.full((num_functions, *(1 if s is None else s for s in size)), value),
            name=f"{name}_{field}",
            shape=(num_functions, *size),
        )
        for field, size in sizes.items()
    }


def of_rows(shared: Mapping[str, TensorSharedVariable], functions: np.ndarray) -> dict:
    """Return the arrays (b, *size) of rows whose functions (b,) these are; of a single function (*size), for all."""
    if not functions.any():
        return {field: array[0] for field, array in shared.items()}
    if np.array_equal(functions, np.arange(len(functions))):
        return dict(shared)
    return {field: array[functions] for field, array in shared.items()}
