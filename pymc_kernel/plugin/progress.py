"""The package's own progress bar, and the columns of its steps in PyMC's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

# Rejections in a row that count as stuck. With an acceptance rate of one in twenty, 200 occur once in 30,000 draws.
STUCK_AFTER = 200


@contextmanager
def progress_bar(words: str, total: int | None, shown: bool) -> Iterator[Callable]:
    """Show a progress bar while the block runs; without a ``total``, a spinner and the elapsed time.

    Yields a function that takes the number of steps to advance by, and optionally a new description.
    """
    known = (SpinnerColumn(),) if total is None else (BarColumn(), MofNCompleteColumn())
    left = () if total is None else (TimeRemainingColumn(),)
    columns = (TextColumn("{task.description}"), *known, TimeElapsedColumn(), *left)
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task(words, total=total)
        yield lambda advance=1, words=None: progress.update(task, advance=advance, description=words)


def progress_columns(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list]]:
    """Return the columns, and the values that they show before the first draw."""
    columns = [
        TextColumn("{task.fields[kernel_accept]:0.2f}", table_column=Column("Accept rate", ratio=1)),
        TextColumn("{task.fields[kernel_scale]:0.2g}", table_column=Column("Proposal scale", ratio=1)),
        TextColumn("{task.fields[kernel_stuck]}", table_column=Column("Stuck for", ratio=1)),
    ]
    stats = {"kernel_accept": [0.0] * n_chains, "kernel_scale": [0.0] * n_chains, "kernel_stuck": [0] * n_chains}
    return columns, stats


def progress_updates() -> tuple[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return a tuple with one function, from the statistics of a draw to the values of the columns."""
    names = {"kernel_accept": "accept", "kernel_scale": "proposal_scale", "kernel_stuck": "stuck_for"}

    def update_stats(stats):
        return {column: stats[name] for column, name in names.items()} | {"failing": stats["stuck_for"] >= STUCK_AFTER}

    return (update_stats,)
