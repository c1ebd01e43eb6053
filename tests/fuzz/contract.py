"""What every public function promises: a result without NaN, or an error of ours that names the argument."""

import re
import traceback
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np

import pymc_kernel

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
    """See that the results of these calls are kept, too."""
    for call in calls:
        kept(call, names)
