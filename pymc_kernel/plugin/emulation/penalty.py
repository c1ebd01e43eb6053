"""The penalty for uncertainty about learned outputs: the log density that their errors cost on average.

Outputs h with errors of variance v have, on average, a lower log likelihood than at their mean. For a single row, the
log likelihood is averaged over h + sqrt(v) s and h - sqrt(v) s with random signs s: for independent data and two-point
errors that is exact, however long the tails. For several rows the loss is v c / 2, with the curvature -c where the
chains are: other rows show the function where one is far off, and a gradient costs half as much. Where h is the log
likelihood itself, the loss is v / 2, which leads to the harmonic mean of the possible likelihoods. Without this loss an
emulated model has modes where nothing was evaluated.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph import ancestors, graph_replace
from pytensor.tensor import TensorVariable
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_kernel.emulation import VarianceBound
from pymc_kernel.plugin.emulation.chains import SMALLEST_VARIANCE
from pymc_kernel.plugin.emulation.model_graph import with_silent_potential
from pymc_kernel.plugin.emulation.parts import distances_of_rows, products_of_rows


def arrays_of_bound(bound: VarianceBound, inverse_length_scale: np.ndarray) -> dict:
    """Return all that :func:`relative_errors` depend on, of one function with inverse length scales (k,).

    Their shapes are (m, k), (m, k), (m, m) and (1,) with m points.
    """
    root = np.sqrt(bound.quadratic)
    return {
        "carriers": bound.points * inverse_length_scale,
        "slopes": bound.points * root / len(inverse_length_scale),
        "reduction": bound.reduction,  # zero for points that are filled up
        "root": [root],
    }


def relative_errors(of: Mapping[str, TensorVariable], z, s):
    """Return possible errors (b, 1) of outputs of amplitude one, as a graph of scaled inputs z (b, k).

    ``of`` has the arrays of :func:`arrays_of_bound`, as :func:`of_rows` returns them; ``s`` is z times inverse length
    scales.
    """
    linear = of["root"] + products_of_rows(z, of["slopes"])
    covariance = pt.exp(-0.5 * distances_of_rows(s, of["carriers"])) + linear**2
    explained = (products_of_rows(covariance, of["reduction"]) ** 2).sum(axis=1, keepdims=True)
    variance = 1.0 + (of["root"] * (1.0 + (z**2).mean(axis=1, keepdims=True))) ** 2 - explained
    return pt.sqrt(pt.maximum(variance, SMALLEST_VARIANCE))


def with_penalties(model: pm.Model, losses: Sequence) -> TensorSharedVariable | None:
    """Lower a model's log density by losses; return their factor, a shared variable of one, or None without losses."""
    if not losses:
        return None
    share = pytensor.shared(1.0, name="share_of_penalty")
    with_silent_potential(model, "emulation_penalty", -share * sum(losses))
    return share


def lost_on_average(model: pm.Model, shifted: pm.Model, shift: TensorVariable) -> TensorVariable:
    """Return how much lower the log density of a model is, on average, with the errors of learned outputs.

    ``shifted`` is a copy whose learned outputs are shifted by ``shift``, a scalar, times their errors. Never below
    zero, though errors raise a log density that is convex. Zero where it is not finite with them.
    """
    names = [v.name for v in (*shifted.basic_RVs, *shifted.potentials) if shift in ancestors([v])]
    middle = _sum_of_terms(model, names, model, {})
    below, above = (_sum_of_terms(shifted, names, model, {shift: pt.constant(np.float64(s))}) for s in (-1.0, 1.0))
    lost = middle - 0.5 * (below + above)
    return pt.switch(pt.isnan(lost) | pt.isinf(lost), 0.0, pt.maximum(lost, 0.0))


def _sum_of_terms(copy, names, model, given):
    """Return the sum of log densities of a copy's variables with these names, at the values of a model's variables."""
    # The log density of a function of random variables has copies of these, so plain variables stand for them.
    stand_ins = {v: v.type(v.name) for v in copy.free_RVs}
    sums = []
    for v in map(copy.__getitem__, names):
        (plain,) = graph_replace([v], {rv: s for rv, s in stand_ins.items() if rv is not v}, strict=False)
        is_potential = v in copy.potentials
        value = None if is_potential else stand_ins.get(v, copy.rvs_to_values[v])
        sums.append((plain if is_potential else pm.logp(plain, value)).sum())
    own = {s: model[v.name] for v, s in stand_ins.items()} | {v: model[v.name] for v in copy.data_vars}
    return graph_replace(sum(sums), own | given, strict=False)


def shared_arrays(name: str, num_functions: int, sizes: Mapping[str, tuple]) -> dict[str, TensorSharedVariable]:
    """Return shared variables by field, each (functions, *size) and full of zeros; a length of None begins as one."""
    shapes = {field: (num_functions, *size) for field, size in sizes.items()}
    return {
        field: pytensor.shared(np.zeros([1 if s is None else s for s in shape]), name=f"{name}_{field}", shape=shape)
        for field, shape in shapes.items()
    }


def filled_up(arrays: Sequence[np.ndarray], fill: float = 0.0) -> np.ndarray:
    """Return arrays as one, (functions, ...), padded with a number to the longest; none of its lengths is zero."""
    shape = [max(1, *lengths) for lengths in zip(*(np.shape(a) for a in arrays), strict=True)]
    out = np.full((len(arrays), *shape), fill)
    for number, array in enumerate(arrays):
        out[number, *map(slice, np.shape(array))] = array
    return out


def of_rows(shared: Mapping[str, TensorSharedVariable], functions: np.ndarray) -> dict:
    """Return the arrays (b, *size) of rows with these functions (b,); with a single function (*size), for all rows."""
    if not functions.any():
        return {field: array[0] for field, array in shared.items()}
    if np.array_equal(functions, np.arange(len(functions))):
        return dict(shared)
    return {field: array[functions] for field, array in shared.items()}
