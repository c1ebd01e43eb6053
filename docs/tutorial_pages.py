"""Make a page of each tutorial: its text, its code, and what the code prints and draws when it is run.

``python -m docs.tutorial_pages`` runs each script of ``tutorials/`` with ``--quick``, cell by cell, in a folder of its
own under ``docs/tutorials``, and writes ``docs/tutorials/NAME.rst``. It is kept while script and package are the same.
"""

import argparse
import contextlib
import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
ORDER = (
    "theophylline", "hares_and_lynx", "noisy_likelihood", "epidemic", "approximate_draws", "several_modes", "at_scale",
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
            blocks.append("::\n\n" + block)
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


def run_cell(code: str, names: dict, file_name: str) -> tuple[str, list[str]]:
    """Run a cell in the working directory; return what it printed, its warnings, and the pictures it saved."""
    before = {path: path.stat().st_mtime_ns for path in Path().glob("*.png")}
    printed = io.StringIO()

    def show(message, category, *place, **more):
        if not any(words in str(message) for words in _NOT_SHOWN):
            print(f"{category.__name__}: {message}", file=printed)

    log = logging.StreamHandler(printed)
    log.setLevel(logging.WARNING)
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(), _handled_by(log):
        warnings.simplefilter("default")
        for quiet in (DeprecationWarning, FutureWarning, ResourceWarning):
            warnings.simplefilter("ignore", quiet)
        warnings.showwarning = show
        exec(compile(code, file_name, "exec"), names)
    new = [path for path in Path().glob("*.png") if before.get(path) != path.stat().st_mtime_ns]
    return printed.getvalue(), [path.name for path in sorted(new, key=lambda path: path.stat().st_mtime_ns)]


def page_of(script: Path, folder: Path) -> str:
    """Run a script with ``--quick`` in ``folder`` and return its page, which lies beside the folder."""
    os.environ.setdefault("MPLBACKEND", "agg")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    sys.argv = [str(script), "--quick"]
    names = {"__name__": "__main__", "__file__": str(script)}
    blocks = []
    for kind, text in cells_of(script.read_text()):
        if kind == "markdown":
            blocks.append(markdown_to_rst(text))
        else:
            printed, pictures = run_cell(text, names, str(script))
            blocks.append(code_to_rst(text, printed, [f"{folder.name}/{picture}" for picture in pictures]))
        if len(blocks) == 1:
            blocks.append(
                f"*This page was made by* ``python tutorials/{script.name} --quick``, *with few draws; without "
                "the option the script takes more. Each run saves its pictures in the folder where it is started.*"
            )
    return "\n\n".join(blocks) + "\n"


def fingerprint(script: Path) -> str:
    """Return what a page depends on: the script, the package, this file."""
    digest = hashlib.sha256()
    for path in [script, Path(__file__), *sorted((ROOT / "pymc_kernel").rglob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make_page(name: str) -> None:
    """Run one tutorial and write its page."""
    script = SCRIPTS / f"{name}.py"
    page = page_of(script, PAGES / name)
    (PAGES / f"{name}.rst").write_text(f".. made from {fingerprint(script)}\n\n{page}")


def is_fresh(name: str) -> bool:
    """Return whether the page of a tutorial was made by the script and package as they are."""
    page = PAGES / f"{name}.rst"
    return page.exists() and page.read_text().startswith(f".. made from {fingerprint(SCRIPTS / f'{name}.py')}")


def _make_in_a_process(name: str) -> tuple[str, subprocess.CompletedProcess]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "docs.tutorial_pages", "--only", name]
    return name, subprocess.run(command, cwd=ROOT, env=threads | os.environ, capture_output=True, text=True)


def main() -> int:
    """Make the pages that are missing or out of date, two at a time; return the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ORDER, help="make this page, in this process")
    only = parser.parse_args().only
    if only:
        make_page(only)
        return 0
    stale = [name for name in ORDER if not is_fresh(name)]
    num_failed = 0
    with ThreadPoolExecutor(2) as pool:
        for name, result in pool.map(_make_in_a_process, stale):
            print(f"tutorials/{name}.py: {'done' if result.returncode == 0 else 'failed'}", flush=True)
            if result.returncode:
                num_failed += 1
                print(result.stderr)
    return num_failed


if __name__ == "__main__":
    sys.exit(main())
