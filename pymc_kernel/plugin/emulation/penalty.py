"""The log density that is lost, on average, by what is not known of a learned part.

Where outputs h have errors of variance v, a log likelihood with curvature -c is on average v c / 2 lower than at their
mean. Without this loss an emulated model has modes where nothing was evaluated.
"""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

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
        sizes = {"points": (None, num_inputs), "reduction": (None, None), "radial": (), "quadratic": ()}
        self._shared = {
            field: pytensor.shared(
                np.zeros((self._num_functions, *(1 if s is None else s for s in size))),
                name=f"{name}_penalty_{field}",
                shape=(self._num_functions, *size),
            )
            for field, size in sizes.items()
        }
        self._curvatures = pytensor.shared(np.zeros(len(functions)), name=f"{name}_curvatures")

    def clear(self) -> None:
        """Lose nothing."""
        self._curvatures.set_value(np.zeros(len(self._functions)))

    def renew(self, bounds: Sequence[VarianceBound], curvatures: np.ndarray) -> None:
        """Put in the bounds of each function, and minus the second derivatives (b,) of the log density.

        These are by the outputs of each row, all in units of their amplitudes, and summed.
        """
        most = max(len(b.points) for b in bounds)
        values = {
            "points": [np.pad(b.points, ((0, most - len(b.points)), (0, 0))) for b in bounds],
            "reduction": [np.pad(b.reduction, (0, most - len(b.points))) for b in bounds],
            "radial": [b.radial for b in bounds],
            "quadratic": [b.quadratic for b in bounds],
        }
        for field, shared in self._shared.items():
            shared.set_value(np.array(values[field]))
        self._curvatures.set_value(curvatures)

    def __call__(self, z, inverse_length_scale):
        """Return the loss at scaled inputs (b, k); inverse length scales are (k,) or (b, k)."""
        k = z.type.shape[1]
        if self._num_functions == 1:
            points, reduction, radial, quadratic = (shared[0] for shared in self._shared.values())
            s, scaled = z * inverse_length_scale, points * inverse_length_scale
            squared = (s**2).sum(axis=1)[:, None] + (scaled**2).sum(axis=1) - 2.0 * (s @ scaled.T)
            covariance = radial * pt.exp(-0.5 * pt.maximum(squared, 0.0)) + quadratic * (1.0 + z @ points.T / k) ** 2
            explained = ((covariance @ reduction.T) ** 2).sum(axis=1)
        else:
            points, reduction, radial, quadratic = (shared[self._functions] for shared in self._shared.values())
            squared = (((z[:, None, :] - points) * inverse_length_scale[:, None, :]) ** 2).sum(axis=2)
            products = (z[:, None, :] * points).sum(axis=2)
            covariance = radial[:, None] * pt.exp(-0.5 * squared) + quadratic[:, None] * (1.0 + products / k) ** 2
            explained = ((covariance[:, None, :] * reduction).sum(axis=2) ** 2).sum(axis=1)
        variance = radial + quadratic * (1.0 + (z**2).sum(axis=1) / k) ** 2 - explained
        return 0.5 * (self._curvatures * pt.maximum(variance, 0.0)).sum()


def with_penalties(model: pm.Model, losses: Sequence) -> pytensor.tensor.sharedvar.TensorSharedVariable:
    """Add the sum of losses to a model, and return how much it counts, a shared variable: one, or zero without them."""
    share = pytensor.shared(1.0, name=f"share_of_{NAME}")
    if losses:
        with_silent_potential(model, NAME, -share * sum(losses))
    return share
