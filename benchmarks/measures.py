"""What the benchmarks measure, and how a table is written into a file between two markers."""

import time
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats

PROBABILITIES = np.arange(0.1, 0.95, 0.1)


def smallest_bulk_ess(draws):
    """Return the smallest bulk effective sample size over parameters; draws (chain, draw, d)."""
    return min(
        float(array_stats.ess(draws[..., j], chain_axis=0, draw_axis=1, method="bulk")) for j in range(draws.shape[-1])
    )


def largest_rhat(draws):
    """Return the largest rank-normalised split R-hat over parameters."""
    return max(float(array_stats.rhat(draws[..., j], chain_axis=0, draw_axis=1)) for j in range(draws.shape[-1]))


def share_below(draws, true_quantiles):
    """Return the share of draws below each true quantile, shape (9, d); draws (..., d), quantiles (9, d)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return np.stack([(flat <= q).mean(axis=0) for q in true_quantiles])


def error_implied_size(shares):
    """Return how many independent draws would have the same mean squared quantile error.

    Parameters
    ----------
    shares : ndarray (repetition, 9, d)
        From :func:`share_below`. n independent draws have p (1 - p) / n as the mean squared error of the share
        below the true p-quantile, whatever the law is; the smallest n over parameters is returned.
    """
    squared = ((shares - PROBABILITIES[:, None]) ** 2).mean(axis=0).sum(axis=0)
    return float(((PROBABILITIES * (1 - PROBABILITIES)).sum() / squared).min())


def write_between(path: Path, marker: str, text: str) -> None:
    """Replace what stands between ``<!-- marker -->`` and ``<!-- /marker -->`` in a file."""
    content = path.read_text()
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    head, rest = content.split(start, 1)
    _, tail = rest.split(end, 1)
    path.write_text(f"{head}{start}\n{text.strip()}\n{end}{tail}")


def shortened(word: str, length: int = 90) -> str:
    """Return text on one line, cut to ``length``, that can stand in a cell of a table."""
    word = " ".join(word.replace("|", "/").split())
    return word if len(word) <= length else f"{word[: length - 3]}..."


def merge_rows(path: Path, marker: str, header, rows, keys) -> str:
    """Return the table with ``rows``, and with those of the file's table that were not run anew.

    Rows are known by their first cells; ``keys`` are these, as tuples, in the order of the table.
    """
    text = path.read_text().split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0]
    # The outer bars alone are taken off: the last cells may be empty.
    old = [[c.strip() for c in line.strip()[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]
    length = len(keys[0])
    known = {tuple(r[:length]): r for r in [*old, *rows] if len(r) == len(header)}
    return markdown_table(header, [known[k] for k in keys if k in known])


def markdown_table(header, rows):
    """Return a markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def median_time(function, repeats):
    """Return the median of seconds of calls, one call before them not counted."""
    function()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def speed_table(rows) -> str:
    """Return a table of (name, our seconds, those of plain NumPy or None, wanted seconds or None), in milliseconds."""

    def shown(seconds):
        return "" if seconds is None else f"{1e3 * seconds:.3g}"

    return markdown_table(
        ["", "ms", "plain NumPy, ms", "ratio", "wanted, ms"],
        [
            [name, shown(ours), shown(plain), "" if plain is None else f"{plain / ours:.0f}", shown(bar)]
            for name, ours, plain, bar in rows
        ],
    )
