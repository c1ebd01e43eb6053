"""Warnings that point to the user's line, and one warning of all that speaks against an answer."""

import os

import numpy as np
import pymc as pm
import pytensor

from pymc_kernel.errors import warn_caller
from pymc_kernel.likelihood_free import Status

__all__ = ["counts_of", "warn_of_failures", "warn_of_findings", "warn_user"]

_CALLERS_OF_OURS = tuple(os.path.dirname(module.__file__) + os.sep for module in (pm, pytensor))
_FAILURES = [s.name.lower() for s in Status if s > Status.SUCCEEDED]


def warn_user(message: str) -> None:
    """Give a warning that points to the last line outside of this package, PyMC and PyTensor."""
    warn_caller(message, *_CALLERS_OF_OURS)


def warn_of_findings(problems: list[str], advice: str) -> None:
    """Give one warning of all problems, if there are any."""
    if problems:
        warn_user(f"this posterior should not be trusted: {'; '.join(problems)}. {advice}")


def warn_of_failures(what: str, consequence: str, counts: dict, most: float) -> None:
    """Warn where a larger share than ``most`` of all calls failed, and where worker processes died.

    Parameters
    ----------
    what : str
        Was called: "simulations".
    consequence : str
        Of a failure.
    counts : dict
        As of :func:`counts_of`.
    most : float
    """
    number = {name: counts[name] for name in _FAILURES if counts[name]}
    failed, total = sum(number.values()), counts["succeeded"] + sum(counts[name] for name in _FAILURES)
    deaths, said = counts["worker_deaths"], []
    if failed > most * total or (failed and deaths):
        reasons = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in number.items())
        said.append(f"{failed} of {total} {what} ({100 * failed / total:.0f} %) failed, and {consequence}: {reasons}.")
        said += [f"The first error of this run: {counts['first_error']}"] if counts["first_error"] else []
    if deaths:
        said.append(
            f"A worker process died (a crash, or no memory left) and all were replaced: {deaths} times. What they were "
            f"doing was done again{', and is lost where a process died of it alone' if counts['lost'] else ''}."
        )
    if said:
        warn_user(" ".join(said))


def counts_of(status: np.ndarray, first_error: str | None, deaths: int) -> dict:
    """Return how many calls have which status, by its name in small letters, the first error, and dead workers."""
    counts = {s.name.lower(): int((status == s).sum()) for s in Status if s >= 0}
    return counts | {"first_error": first_error or "", "worker_deaths": deaths}
