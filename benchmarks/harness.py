"""How a benchmark is run: its options, processes, rows as they come, rows kept for the next run, tables in files.

A script is its targets and methods, a function that measures one of them, and ``main``: its arguments are the options.
"""

import argparse
import inspect
import json
import logging
import multiprocessing
import os
import platform
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parent.parent
HERE = ROOT / "benchmarks"
BUILD, FIGURES, ROWS = ROOT / "build", HERE / "figures", HERE / "rows"
RESULTS, ZOO = HERE / "RESULTS.md", HERE / "ZOO.md"
PACKAGES = "pymc", "pytensor", "arviz", "numpy", "scipy", "numba"  # whose versions a table tells


# -- options -------------------------------------------------------------------------------------------


def parser_of(main: Callable) -> argparse.ArgumentParser:
    """Return the parser of a script: an option for each argument of ``main``, by its default.

    A tuple of words is a choice of some of them, one of numbers is any others, False is a switch. What has None by
    default needs an annotation, ``TYPE | None``.
    """
    described = {"description": main.__globals__["__doc__"], "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(**described)
    for name, parameter in inspect.signature(main).parameters.items():
        default, option = parameter.default, f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            kind = type(default[0])
            allowed = {"choices": default} if kind is str else {"metavar": name[0].upper()}
            parser.add_argument(option, nargs="*", type=kind, default=default, help="default: all", **allowed)
        else:
            kind = type(default) if default is not None else get_args(parameter.annotation)[0]
            parser.add_argument(option, type=kind, default=default, help=f"default: {default}")
    return parser


def run(main: Callable) -> None:
    """Call ``main`` with the options of the command line."""
    logging.getLogger("pymc").setLevel(logging.WARNING)
    main(**vars(parser_of(main).parse_args()))


# -- processes -----------------------------------------------------------------------------------------


@contextmanager
def _noted_interrupts() -> Iterator[list]:
    """Note interrupts: PyMC takes one for the end of sampling and returns what it has, which is no result."""
    noted = []

    def note(number, frame):
        noted.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def results(
    function: Callable, tasks: Sequence[tuple], jobs: int, start: str | None = None, chunk: int = 1
) -> Iterator:
    """Yield ``function(*task)`` of all tasks in order, from ``jobs`` processes with one thread of BLAS each.

    One job runs in this process. ``start`` is the way in which processes start; ``chunk`` tasks go to one at a time.
    """
    if jobs == 1:
        with _noted_interrupts() as noted, threadpool_limits(1):
            for task in tasks:
                result = function(*task)
                if noted:
                    raise KeyboardInterrupt
                yield result
        return
    context = multiprocessing.get_context(start)
    with ProcessPoolExecutor(jobs, context, threadpool_limits, (1,)) as pool:
        try:
            yield from pool.map(function, *zip(*tasks, strict=True), chunksize=chunk)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def grouped(function: Callable, keys: Sequence[tuple], repetitions: int, jobs: int = 2) -> Iterator[tuple[tuple, list]]:
    """Yield each key with the results of ``function(*key, seed)`` for seeds from zero."""
    found = results(function, [(*key, seed) for key in keys for seed in range(repetitions)], jobs)
    for key in keys:
        yield key, list(islice(found, repetitions))


def warned_at(script: str, caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return the texts of warnings that point to a line of a script, as those of this package do."""
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning) and w.filename == script]


# -- tables --------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """Return a markdown table; None is an empty cell."""
    lines = [" | ".join("" if cell is None else str(cell) for cell in row) for row in [header, *rows]]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def shortened(text: str, length: int = 90) -> str:
    """Return text on one line, cut to ``length``, that can stand in a cell of a table."""
    text = " ".join(text.replace("|", "/").split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def write_between(path: Path, marker: str, text: str) -> None:
    """Replace what stands between ``<!-- marker -->`` and ``<!-- /marker -->`` in a file."""
    head, _, tail = _parts(path, marker)
    path.write_text(f"{head}<!-- {marker} -->\n{text.strip()}\n<!-- /{marker} -->{tail}")


def write_results(marker: str, text: str, path: Path = RESULTS) -> None:
    """Write a table between its markers, and below it when, with what and where; and the file's contents, if any."""
    write_between(path, marker, f"{text.strip()}\n\n*Last written {date.today()} with {versions()}.*")
    if "<!-- contents -->" in (whole := path.read_text()):
        write_between(path, "contents", contents(whole))


def versions() -> str:
    """Return the versions of Python and of the packages that count, and the machine."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} processors, {platform.machine()}"


def contents(text: str) -> str:
    """Return a list of the headings of a markdown file, with links to them as GitHub names them."""
    lines = []
    for depth, heading in re.findall(r"^##(#?) (.+)$", text, flags=re.M):
        words = re.sub(r" \(`python .*`\)$", "", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        lines.append(f"{'  ' if depth else ''}- [{words}](#{anchor})")
    return "\n".join(lines)


def _parts(path: Path, marker: str) -> tuple[str, str, str]:
    """Return what stands before, between and behind the two markers."""
    head, rest = path.read_text().split(f"<!-- {marker} -->", 1)
    return head, *rest.split(f"<!-- /{marker} -->", 1)


def rows_between(path: Path, marker: str) -> list[list[str]]:
    """Return the cells of the rows of a table that stands in a file already, header and rule left out."""
    lines = [line for line in _parts(path, marker)[1].splitlines() if line.startswith("|")]
    # The outer bars alone are taken off: the last cells may be empty.
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines[2:]]


def with_most_runs(rows: Sequence[Sequence], before: Sequence[Sequence], key: Callable, runs: Callable) -> list[list]:
    """Return the cells of rows, new ones and those ``before``; of two with the same key those of more runs."""
    known = {}
    for row in (*before, *rows):
        cells = [str(cell) for cell in row]
        if key(cells) not in known or runs(cells) >= runs(known[key(cells)]):
            known[key(cells)] = cells
        else:
            print(f"kept, since it has more runs than the new row: {' | '.join(known[key(cells)])}", flush=True)
    return list(known.values())


@dataclass(frozen=True)
class Table:
    """A table of results in a marked place of a file.

    Attributes
    ----------
    marker : str
    header : sequence of str
    keys : sequence of tuple, optional
        The first cells of all rows, in order. Rows with other keys than those that are written stay as they were;
        without keys all rows are replaced.
    files : sequence of Path
    """

    marker: str
    header: Sequence[str]
    keys: Sequence[tuple] | None = None
    files: Sequence[Path] = (RESULTS,)

    def write(self, rows: Sequence[Sequence], note: str = "", below: str = "") -> str:
        """Write the rows between a note and what stands below them, and return the text."""
        rows = [["" if cell is None else str(cell) for cell in row] for row in rows]
        table = markdown_table(self.header, rows if self.keys is None else self._merged(rows))
        text = "\n\n".join(part for part in (note, table, below) if part)
        for file in self.files:
            write_results(self.marker, text, file)
        return text

    def write_by_name(self, rows: Sequence[dict], column: str, cells: Callable) -> str:
        """Write a line of ``cells`` for all rows whose ``column`` is the same key of the table, and return the text."""
        own = {name: [row for row in rows if row[column] == name] for (name,) in self.keys}
        return self.write([[name, *cells(group)] for name, group in own.items() if group])

    def _merged(self, rows):
        old = rows_between(self.files[0], self.marker)
        keys = [tuple("" if k is None else str(k) for k in key) for key in self.keys]
        known = {tuple(row[: len(keys[0])]): row for row in [*old, *rows] if len(row) == len(self.header)}
        return [known[key] for key in keys if key in known]

    def fill(self, function, cells, repetitions, note="", keys=None, jobs=2) -> None:
        """Measure ``function(*key, seed)`` for each key and seed; print and write each row that is complete.

        ``cells(group)`` returns what stands behind the key in its row.
        """
        rows = []
        for key, group in grouped(function, self.keys if keys is None else keys, repetitions, jobs):
            rows.append([*key, *cells(group)])
            print(*rows[-1], flush=True)
            self.write(rows, note)


# -- rows of long runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows of a long benchmark, kept as they are finished, so that a run that was ended goes on.

    Files lie in ``benchmarks/rows``, beside the tables that are made of them. ``key`` tells which task a row is of; the
    last row of each counts, and the others go when a run ends.
    """

    path: Path
    key: Callable[[dict], tuple]

    def kept(self) -> dict[tuple, dict]:
        """Return the finished rows by key."""
        rows = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # an empty line, or half of one from a run that was killed
                continue
            rows[self.key(row)] = row
        return rows

    def keep(self, row: dict) -> None:
        """Append a row in one piece, on a line of its own whatever the last run left behind."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(row) + "\n")

    def complete(self, function, wanted, told, again=False, jobs=1, chunk=1) -> list[dict]:
        """Run the tasks that have no row, all of them ``again``, until an interrupt; return all rows that are kept.

        ``told(row)`` is printed of a row that is finished.
        """
        known = self.kept()
        tasks = [task for task in wanted if again or task not in known]
        print(f"{len(wanted)} outcomes asked for, {len(tasks)} to be run; rows in {self.path}", flush=True)
        try:
            for i, row in enumerate(results(function, tasks, jobs, "spawn", chunk), 1):
                self.keep(row)
                print(f"[{i}/{len(tasks)}] {', '.join(map(str, self.key(row)))}: {told(row)}", flush=True)
        except KeyboardInterrupt:
            print("interrupted; the rows that are there are written", flush=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        rows = self.kept()
        if rows:
            tidy = self.path.with_suffix(f".{os.getpid()}")  # of this run alone
            tidy.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))
            if self.path.stat().st_size == size:  # otherwise another run has just added a row, and will tidy up
                tidy.replace(self.path)
            tidy.unlink(missing_ok=True)
        return list(rows.values())


# -- pictures ------------------------------------------------------------------------------------------


def draw_curves(name: str, x: Sequence[float], panels: dict, share_y: bool = False, legend: str = "", **axis) -> None:
    """Save a picture of curves: title -> label -> values at ``x``; ``axis`` goes to all axes."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=share_y)
    for place, (title, curves) in zip(axes, panels.items(), strict=True):
        for label, values in curves.items():
            place.plot(x, values, "o-", label=label)
        place.set(title=title, **axis)
    if len(curves) > 1:
        axes[-1].legend(title=legend, fontsize=8)
    figure.savefig(FIGURES / f"{name}.png", dpi=80)


def draw_intervals(path: Path, draws: Mapping[str, np.ndarray], names: Sequence[str], columns: int = 3) -> None:
    """Save a picture of medians and central intervals (50 and 90 %) of draws (n, d), a row for each method.

    The first method is the exact one: its interval of 90 % is a band behind all others.
    """
    rows = -(-len(names) // columns)
    labels = 0.1 * max(map(len, draws))  # inches
    figure = Figure(figsize=(2.6 * columns + labels, (0.25 * len(draws) + 0.6) * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    places = np.arange(len(draws))[::-1]
    for j, (axis, name) in enumerate(zip(axes, names, strict=False)):
        marks = np.array([np.quantile(d[:, j], [0.05, 0.25, 0.5, 0.75, 0.95]) for d in draws.values()]).T
        axis.axvspan(marks[0, 0], marks[-1, 0], color="0.9")
        axis.hlines(places, marks[0], marks[-1], linewidth=1.0)
        axis.hlines(places, marks[1], marks[-2], linewidth=4.0)
        axis.plot(marks[2], places, "o", color="white", markeredgecolor="C0", markersize=5)
        axis.set(xlabel=name, yticks=places, yticklabels=draws, ylim=(-0.6, len(draws) - 0.4))
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=100)


def draw_pairs(name: str, draws: np.ndarray, names: Sequence[str], paths: Sequence[np.ndarray] = ()) -> None:
    """Save a picture of all pairs of coordinates of draws (n, d), with correlations; ``paths`` are (steps, d)."""
    d, correlations = len(names), np.corrcoef(draws.T)
    figure = Figure(figsize=(1.2 * d + 1, 1.2 * d + 1), layout="constrained")
    axes = figure.subplots(d, d, sharex="col")
    for i, row in enumerate(axes):
        for j, place in enumerate(row):
            place.tick_params(labelsize=10)
            place.locator_params(nbins=3)
            if j > i:
                place.axis("off")
                place.text(0.5, 0.5, f"{correlations[i, j]:.2f}", ha="center", va="center", transform=place.transAxes)
            elif j == i:
                place.hist(draws[:, i], bins=30, color="0.7")
                place.set_yticks([])
            else:
                place.plot(draws[:, j], draws[:, i], ".", markersize=1.5, color="0.6", rasterized=True)
                for k, path in enumerate(paths):
                    place.plot(path[:, j], path[:, i], color=f"C{k}", linewidth=1.0)
                    place.plot(*path[0, [j, i]], "o", markersize=3, color=f"C{k}")
                if j > 0:
                    place.sharey(row[0])
                    place.tick_params(labelleft=False)
        axes[-1, i].set_xlabel(names[i], fontsize=13)
        if i:
            row[0].set_ylabel(names[i], fontsize=13)
    figure.savefig(FIGURES / f"{name}.png", dpi=80)
