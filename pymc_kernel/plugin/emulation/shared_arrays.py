"""Arrays of each function that was learned, in shared variables, so that a compiled graph of them may be renewed."""

from collections.abc import Mapping

import numpy as np
import pytensor
from pytensor.tensor.sharedvar import TensorSharedVariable


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
