"""Make a page of each tutorial: its text, its code, and what the code printed and drew when it was run.

``python -m docs.tutorial_pages --run [NAME ...]`` runs scripts of ``tutorials/`` cell by cell, which takes minutes, and
keeps what they print and draw in ``docs/tutorials/output``. Without the option ``docs/tutorials/NAME.rst`` is written
for all of them: the text as it is now, the code, and what was kept. What belongs to other code is an error, and so is a
warning that the text after it does not speak of.
"""

import argparse
import contextlib
import datetime
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from importlib.metadata import version
from pathlib import Path

from docs.page_examples import checksum

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
OUTPUT = PAGES / "output"
ORDER = (
    "theophylline", "hares_and_lynx", "noisy_likelihood", "epidemic", "reaction_times", "approximate_draws",
    "several_modes", "at_scale",
)  # fmt: skip
_WIDTH = 100  # of printed sentences, in characters
_UNDERLINES = {1: "=", 2: "-", 3: "~"}
# What the surroundings say of themselves, and not of the answer.
_NOT_SHOWN = ("Numba will use object mode", "multi-threaded, use of fork", "object mode")


def cells_of(script: str) -> list[tuple[str, str]]:
    """Return the cells of a percent script: ("markdown" or "code", text without comment signs)."""
    cells = []
    for part in re.split(r"^# %%", script, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        if heading.strip() == "[markdown]":
            body = re.sub(r"^# ?", "", body, flags=re.M)
            cells.append(("markdown", body.strip()))
        elif body.strip():
            cells.append(("code", body.strip("\n")))
    return cells


def inline_to_rst(text: str) -> str:
    """Return a paragraph's text with code, links and emphasis in the way of reStructuredText."""
    parts = re.split(r"(`[^`]+`|\[[^\]]+\]\([^)]+\))", text)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"(\\|\||(?<=\w)_(?!\w))", r"\\\1", part)
        elif part.startswith("`"):
            parts[i] = _code_to_rst(part[1:-1])
        else:
            words, target = part[1:].removesuffix(")").split("](")
            page = re.fullmatch(r"\.\./docs/(.+)\.rst", target)
            parts[i] = f":doc:`{words} </{page[1]}>`" if page else f"`{words} <{target}>`__"
    return "".join(parts)


def _code_to_rst(code: str) -> str:
    name = re.fullmatch(r"pk\.(\w+)(\(\))?", code)
    return f":py:obj:`{code} <pymc_kernel.{name[1]}>`" if name else f"``{code}``"


def markdown_to_rst(text: str) -> str:
    """Return a cell's text: headings, paragraphs, lists, indented blocks, and tables of bars."""
    blocks = []
    text = re.sub(r"^(\|.*\n)(?=[^|\n])", r"\1\n", text, flags=re.M)  # a table ends where its bars do
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        heading = re.fullmatch(r"(#{1,3}) (.+)", block.strip())
        if heading:
            title = inline_to_rst(heading[2])
            blocks.append(f"{title}\n{_UNDERLINES[len(heading[1])] * len(title)}")
        elif block.startswith("    "):
            blocks.append(".. code-block:: none\n\n" + block)
        elif block.startswith("|"):
            blocks.append(_table_to_rst(block))
        else:
            blocks.append(inline_to_rst(block))
    return "\n\n".join(blocks)


def _table_to_rst(block: str) -> str:
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in block.splitlines()]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows[:1] + rows[2:]:
        for j, cell in enumerate(row):
            lines.append(f"   {'*' if j == 0 else ' '} - {inline_to_rst(cell)}")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join("   " + line if line.strip() else "" for line in text.splitlines())


def _sentences_wrapped(printed: str) -> str:
    """Return what was printed, long lines of words (warnings, findings) broken; columns of tables are left alone."""
    lines = []
    for line in printed.rstrip().splitlines():
        is_text = len(line) > _WIDTH and "  " not in line.strip().replace(".  ", ". ")
        lines += textwrap.wrap(line, _WIDTH, subsequent_indent="  ") if is_text else [line]
    return "\n".join(lines)


def code_to_rst(code: str, printed: str, pictures: list[str]) -> str:
    """Return a cell of code with what it printed and the pictures that it drew."""
    blocks = [".. code-block:: python\n\n" + _indented(code)]
    if printed.strip():
        blocks.append(".. code-block:: none\n   :class: output\n\n" + _indented(_sentences_wrapped(printed)))
    blocks += [f".. image:: {picture}\n   :alt: {Path(picture).stem.replace('_', ' ')}" for picture in pictures]
    return "\n\n".join(blocks)


@contextlib.contextmanager
def _handled_by(handler):
    logger = logging.getLogger("pymc")  # says what samplers warn of
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Noted:
    """A stream that writes to another, and knows whether anything was written."""

    def __init__(self, stream: io.StringIO):
        self._stream, self.has_text = stream, False

    def write(self, text: str) -> int:
        """Write a text."""
        self.has_text = True
        return self._stream.write(text)

    def flush(self) -> None:
        """Do nothing: the other stream is in memory."""


def run_cell(code: str, names: dict, file_name: str) -> dict:
    """Run a cell in the working directory; return what it printed, whether it warned, and the pictures it saved."""
    before = {path: path.stat().st_mtime_ns for path in Path().glob("*.png")}
    printed = io.StringIO()
    warned = _Noted(printed)

    def show(message, category, *place, **more):
        if not any(words in str(message) for words in _NOT_SHOWN):
            print(f"{category.__name__}: {message}", file=warned)

    log = logging.StreamHandler(warned)
    log.setLevel(logging.WARNING)
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(), _handled_by(log):
        warnings.simplefilter("default")
        for quiet in (DeprecationWarning, FutureWarning, ResourceWarning):
            warnings.simplefilter("ignore", quiet)
        warnings.showwarning = show
        exec(compile(code, file_name, "exec"), names)
    new = [path for path in Path().glob("*.png") if before.get(path) != path.stat().st_mtime_ns]
    pictures = [path.name for path in sorted(new, key=lambda path: path.stat().st_mtime_ns)]
    return {"printed": printed.getvalue(), "warned": warned.has_text, "pictures": pictures}


def _codes_of(cells):
    return [text for kind, text in cells if kind == "code"]


def run(script: Path) -> None:
    """Run a script in an empty directory, and keep what it prints and draws."""
    os.environ.setdefault("MPLBACKEND", "agg")
    codes, names = _codes_of(cells_of(script.read_text())), {"__name__": "__main__", "__file__": str(script)}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        outputs = [run_cell(code, names, str(script)) for code in codes]
        folder = OUTPUT / script.stem
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for picture in Path().glob("*.png"):
            shutil.copy(picture, folder)
    kept = {
        "code": checksum(codes),
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.perf_counter() - start),
        "versions": {name: version(name) for name in ("pymc_kernel", "pymc", "arviz")},
        "cells": outputs,
    }
    (OUTPUT / f"{script.stem}.json").write_text(json.dumps(kept, indent=1) + "\n")


def page_of(script: Path) -> str:
    """Return the page of a script, which has its kept output.

    Raises
    ------
    ValueError
        If the output is of other code, or if a cell warned and the text after it does not have "warn" in it.
    """
    cells = cells_of(script.read_text())
    kept_file = OUTPUT / f"{script.stem}.json"
    kept = json.loads(kept_file.read_text()) if kept_file.exists() else {"code": None}
    if kept["code"] != checksum(_codes_of(cells)):
        raise ValueError(f"the code of {script.name} has changed: python -m docs.tutorial_pages --run {script.stem}")
    outputs, blocks = iter(kept["cells"]), []
    for number, (kind, text) in enumerate(cells):
        if kind == "markdown":
            blocks.append(markdown_to_rst(text))
        else:
            output = next(outputs)
            after = next((words for what, words in cells[number:] if what == "markdown"), "")
            if output["warned"] and "warn" not in after:
                raise ValueError(f"{script.name} does not speak of this warning: {output['printed']}")
            pictures = [f"output/{script.stem}/{picture}" for picture in output["pictures"]]
            blocks.append(code_to_rst(text, output["printed"], pictures))
        if number == 0:
            took = f"{kept['seconds']} seconds" if kept["seconds"] < 100 else f"{kept['seconds'] / 60:.0f} minutes"
            with_versions = ", ".join(" ".join(pair) for pair in kept["versions"].items())
            blocks.append(
                f"*Run by* ``python tutorials/{script.name}`` *in {took} on two cores that had other work, "
                f"{kept['date']}: {with_versions}. Each run saves its pictures in the folder where it is started.*"
            )
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    """Run the scripts that are asked for, one after the other, or write all pages; return the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", choices=ORDER, metavar="NAME", help="run these scripts; without names, all")
    names = parser.parse_args().run
    if names is None:
        for name in ORDER:
            (PAGES / f"{name}.rst").write_text(page_of(SCRIPTS / f"{name}.py"))
        return 0
    if len(names) == 1:
        run(SCRIPTS / f"{names[0]}.py")
        return 0
    num_failed = 0
    for name in names or ORDER:  # each in a process of its own: what one imports and sets is not seen by the next
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "docs.tutorial_pages", "--run", name]
        done = subprocess.run(command, cwd=ROOT, env=threads | os.environ, check=False)
        print(f"tutorials/{name}.py: {'failed' if done.returncode else 'done'}", flush=True)
        num_failed += bool(done.returncode)
    return num_failed


if __name__ == "__main__":
    sys.exit(main())
