"""Progress bars: one of the package, and columns for its steps in that of PyMC."""

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

# Rejections in a row. A chain that accepts one proposal in twenty rejects 200 in a row once in 30,000 draws.
STUCK_AFTER = 200


@contextmanager
def progress_bar(words: str, total: int | None, shown: bool) -> Iterator[Callable]:
    """Show a bar inside of the block, or without a ``total`` for how long it takes.

    Yields a function of by how much it advances, and of other words.
    """
    known = (SpinnerColumn(),) if total is None else (BarColumn(), MofNCompleteColumn())
    left = () if total is None else (TimeRemainingColumn(),)
    columns = (TextColumn("{task.description}"), *known, TimeElapsedColumn(), *left)
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task(words, total=total)
        yield lambda advance=1, words=None: progress.update(task, advance=advance, description=words)


def progress_columns(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list]]:
    """Return the columns, and what they show before the first draw."""
    columns = [
        TextColumn("{task.fields[kernel_accept]:0.2f}", table_column=Column("Accept rate", ratio=1)),
        TextColumn("{task.fields[kernel_scale]:0.2g}", table_column=Column("Proposal scale", ratio=1)),
        TextColumn("{task.fields[kernel_stuck]}", table_column=Column("Stuck for", ratio=1)),
    ]
    stats = {"kernel_accept": [0.0] * n_chains, "kernel_scale": [0.0] * n_chains, "kernel_stuck": [0] * n_chains}
    return columns, stats


def progress_updates() -> tuple[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return functions from the statistics of a draw to what the columns show."""

    def update_stats(stats):
        return {
            "kernel_accept": stats["accept"],
            "kernel_scale": stats["proposal_scale"],
            "kernel_stuck": stats["stuck_for"],
            "failing": stats["stuck_for"] >= STUCK_AFTER,
        }

    return (update_stats,)
