"""Arrays as nobody means them but everybody has them, and what every public function promises of them:
a result without NaN, or an error of ours that names the argument.
"""

import re
import traceback
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import pymc_kernel

MAGNITUDES = (0, 0, 0, -3, 3, -8, 8, -20, 20, -75, 75, -150, 150)  # powers of ten; ordinary numbers most often
SPECIAL = (np.nan, np.inf, -np.inf)


def powers() -> st.SearchStrategy:
    """Powers of ten between 1e-150 and 1e150."""
    return st.sampled_from(MAGNITUDES).map(lambda power: 10.0**power)


def seeds() -> st.SearchStrategy:
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def arrays(draw, shape, special=True):
    """An array of a shape: numbers of one magnitude or of many, all the same, repeated, or with some not finite."""
    rng = draw(seeds())
    kind = draw(st.sampled_from(["normal", "normal", "normal", "constant", "repeated", "mixed", "zero", "whole"]))
    values = rng.standard_normal(shape) * draw(powers())
    if kind == "constant":
        values[...] = draw(powers())
    elif kind == "repeated" and len(values) > 1:
        values = values[rng.integers(max(1, len(values) // 2), size=len(values))]
    elif kind == "mixed":
        values = np.clip(values * 10.0 ** rng.integers(-20, 21, size=shape), -1e150, 1e150)
    elif kind == "zero":
        values[...] = 0.0
    elif kind == "whole":
        values = rng.integers(-3, 4, size=shape)
    if special and values.size and kind != "whole" and draw(st.integers(0, 7)) == 0:
        values.flat[draw(st.integers(0, values.size - 1))] = draw(st.sampled_from(SPECIAL))
    return laid_out(values, draw(st.sampled_from(["plain", "plain", "float32", "fortran", "fixed", "strided", "list"])))


def laid_out(values, how):
    """Return the same numbers in another type or layout."""
    if how == "float32":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float32)
    if how == "fortran":
        return np.asfortranarray(values)
    if how == "fixed":
        values = values.copy()
        values.flags.writeable = False
        return values
    if how == "strided":
        return np.repeat(values, 2, axis=-1)[..., ::2] if values.ndim else values
    return values.tolist() if how == "list" else values


def sizes(least=0, most=5) -> st.SearchStrategy:
    return st.integers(least, most)


def dimensions() -> st.SearchStrategy:
    """Numbers of columns; seldom none."""
    return st.sampled_from([1, 2, 3, 1, 2, 3, 0])


PACKAGE = Path(pymc_kernel.__file__).parent


def answered(call, names):
    """Return the result of ``call``, or None where it was refused as it should, by one of the arguments ``names``."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)  # said
        try:
            return call()
        except (ValueError, TypeError) as error:
            refusal = error
    where = Path(traceback.extract_tb(refusal.__traceback__)[-1].filename)
    assert PACKAGE in where.parents, f"{type(refusal).__name__} out of {where}: {refusal}"
    assert re.search(rf"\b({'|'.join(map(re.escape, names))})\b", str(refusal)), f"names none of {names}: {refusal}"
    return None


def kept(call, names):
    """Return the same, which holds no NaN."""
    result = answered(call, names)
    for array in arrays_in(result):
        assert not np.isnan(array).any(), f"NaN in silence: {result!r}"
    return result


def arrays_in(result):
    """Return all arrays and numbers of a result, inside of tuples and dataclasses too."""
    if isinstance(result, np.ndarray | float | np.floating):
        return [np.asarray(result)] if np.asarray(result).dtype.kind == "f" else []
    if is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, f.name) for f in fields(result)]
    elif isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        return [a for part in result for a in arrays_in(part)]
    return []


def all_kept(names, *calls):
    for call in calls:
        kept(call, names)
