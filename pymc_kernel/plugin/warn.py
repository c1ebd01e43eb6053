"""Warnings that point to the user's line, and one warning of all that speaks against an answer."""

import functools
import os
import warnings
from pathlib import Path

import pymc as pm
import pytensor

__all__ = ["warn_of_findings", "warn_user"]

# How files begin whose lines are not the user's: this package and those that call it, PyTensor by way of functools.
_DIRECTORIES = Path(__file__).parents[1], Path(pm.__file__).parent, Path(pytensor.__file__).parent
_NOT_THE_USERS = functools.__file__.removesuffix(".py"), *(f"{directory}{os.sep}" for directory in _DIRECTORIES)


def warn_user(message: str) -> None:
    """Give a warning that points to the last line outside of this package, PyMC and PyTensor."""
    warnings.warn(message, skip_file_prefixes=_NOT_THE_USERS)


def warn_of_findings(problems: list[str], advice: str) -> None:
    """Give one warning of all problems, if there are any."""
    if problems:
        warn_user(f"this posterior should not be trusted: {'; '.join(problems)}. {advice}")
