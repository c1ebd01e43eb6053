"""Warnings that point to the user's line; those about a result are stored with it, for :func:`diagnose`."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pymc_kernel.errors import warn_caller
from pymc_kernel.likelihood_free import Status

FALSE_ALARMS = 0.01  # largest share of correct results that a check may warn about
_CALLERS_OF_OURS = tuple(os.path.dirname(module.__file__) + os.sep for module in (pm, pytensor))
STATUS_FLAGS = {"flag_values": [int(s) for s in Status], "flag_meanings": " ".join(s.name.lower() for s in Status)}
_FAILURES = [s.name.lower() for s in Status if s > Status.SUCCEEDED]
_FINDINGS = "findings"  # attribute of a group of statistics: one warning per line

# In the docstring of each function that returns evidence; pages of the documentation say |unseen mode| for it.
UNSEEN_MODE = (
    "No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is unlikely in five or "
    "more dimensions: the evidence then lacks the mode's mass, no check shows it, and runs that agree do not rule it "
    "out."
)


def warn_user(message: str) -> None:
    """Give a warning that points to the last line outside of this package, PyMC and PyTensor."""
    warn_caller(message, *_CALLERS_OF_OURS)


def report(message: str, stats: Any) -> None:
    """Warn about a result, and store the message in its statistics: a dataset, or a group of a DataTree."""
    warn_user(message)
    stats.attrs[_FINDINGS] = "\n".join([*findings_in(stats), message])


def report_checks(sampler: str, stats: Any, *checks: Callable[[], str]) -> None:
    """Report what checks of finished draws say, in one warning; an interrupt or an error ends the checks alone."""
    said = []
    try:
        for check in checks:
            said.append(check())
    except (Exception, KeyboardInterrupt) as error:
        said.append(
            f"the draws are kept, but checks of them were ended by {type(error).__name__}: {error}".rstrip(": ")
        )
    if words := " Besides, ".join(filter(None, said)):
        report(f"{sampler}: {words}", stats)


def report_all(problems: list[str], advice: str, stats: Any) -> None:
    """Report all problems together, if there are any."""
    if problems:
        report(f"this posterior should not be trusted: {'; '.join(problems)}. {advice}", stats)


def findings_in(stats: Any) -> list[str]:
    """Return the messages that were reported about a result."""
    return stats.attrs.get(_FINDINGS, "").splitlines()


def warn_of_failures(what: str, consequence: str, counts: dict, most: float) -> None:
    """Warn if more than a share ``most`` of calls failed, such as "simulations", by ``counts_of``, or workers died."""
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
    """Return the number of calls by the name of their status in lower case, the first error, and worker deaths."""
    counts = {s.name.lower(): int((status == s).sum()) for s in Status if s >= 0}
    return counts | {"first_error": first_error or "", "worker_deaths": deaths}
