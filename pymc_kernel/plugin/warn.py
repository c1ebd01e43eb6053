"""Warnings that point to the user's line, and one warning of all that speaks against an answer."""

import os

import pymc as pm
import pytensor

from pymc_kernel.errors import warn_caller

__all__ = ["warn_of_findings", "warn_user"]

_CALLERS_OF_OURS = tuple(os.path.dirname(module.__file__) + os.sep for module in (pm, pytensor))


def warn_user(message: str) -> None:
    """Give a warning that points to the last line outside of this package, PyMC and PyTensor."""
    warn_caller(message, *_CALLERS_OF_OURS)


def warn_of_findings(problems: list[str], advice: str) -> None:
    """Give one warning of all problems, if there are any."""
    if problems:
        warn_user(f"this posterior should not be trusted: {'; '.join(problems)}. {advice}")
