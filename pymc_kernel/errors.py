"""The package's error types, each also a built-in one (``ValueError``), and warnings at the caller's line."""

import contextlib
import functools
import os
import warnings

# Prefixes of files whose lines are not the caller's: the package, and the modules that call its functions.
_NOT_THE_CALLERS = (
    os.path.dirname(__file__) + os.sep,
    *(module.__file__.removesuffix(".py") for module in (contextlib, functools)),
)


def warn_caller(message: str, *others: str) -> None:
    """Warn at the innermost line outside of the package and of files whose names begin with one of ``others``."""
    warnings.warn(message, skip_file_prefixes=(*_NOT_THE_CALLERS, *others))


class PymcKernelError(Exception):
    """Base of all errors that the package defines."""


class NoGradientError(PymcKernelError, ValueError):
    """Scores were requested for a model whose log density has no gradient, is only estimated, or not known."""


class NonFiniteStartError(PymcKernelError, ValueError):
    """The log density is not finite at the point where a chain is to start."""


class NoisyBlockError(PymcKernelError, ValueError):
    """A step was given a part of the variables of a model whose density is only estimated.

    The estimate that was accepted belongs to one value of all free variables. If another step moves some
    of them, keeping the old estimate and drawing a new one are both wrong.
    """


class NotDifferentiableError(PymcKernelError, ValueError):
    """A derivative was requested of a kernel that has none at zero distance."""
