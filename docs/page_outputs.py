"""What the examples of the method pages print and draw: ``python -m docs.page_outputs [NAME ...]`` writes it anew.

For each page ``methods/NAME.rst``: ``methods/output/NAME.txt`` with what its first example prints, ``NAME-2.txt`` that
of the second and so on; ``NAME.png`` with the picture of the first example that draws one, ``NAME-4.png`` with that of
the fourth example, if it draws another. The first line of a text says which examples it belongs to; a test compares.
"""

import contextlib
import io
import logging
import os
import sys
import tempfile
from functools import partial

from docs.page_examples import DOCS, checksum, examples_of

METHODS = DOCS / "methods"
OUTPUT = METHODS / "output"
PAGES = sorted(page for page in METHODS.glob("*.rst") if "output/" in page.read_text())
_WIDTH = 110  # characters of a line, as wide as a page shows


def mark_of(page) -> str:
    """Return the first line of a page's output, which names its examples by their checksum."""
    return f"# {checksum(examples_of(page))}"


def write(page) -> None:
    """Run the examples of one page in an empty directory, and write their output."""
    import matplotlib.pyplot as plt
    import pandas as pd

    plt.close("all")
    OUTPUT.mkdir(exist_ok=True)
    names, wide = {}, pd.option_context("display.width", _WIDTH, "display.max_columns", 20)
    has_picture = False
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty), wide:
        for number, example in enumerate(examples_of(page), start=1):
            printed = io.StringIO()
            names["print"] = partial(print, file=printed)  # progress bars are left out
            exec(compile(example, str(page), "exec"), names)
            if printed.getvalue():
                name = page.stem if number == 1 else f"{page.stem}-{number}"
                lines = [line.rstrip() for line in printed.getvalue().splitlines()]
                (OUTPUT / f"{name}.txt").write_text("\n".join([mark_of(page), *lines, ""]))
            if plt.get_fignums():
                name = f"{page.stem}-{number}" if has_picture else page.stem
                plt.figure(plt.get_fignums()[-1]).savefig(OUTPUT / f"{name}.png", dpi=100, bbox_inches="tight")
                plt.close("all")
                has_picture = True


def main(names):
    """Write the output of all pages, or of those named."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    os.environ.setdefault("MPLBACKEND", "Agg")
    for page in PAGES:
        if not names or page.stem in names:
            print(page.stem, flush=True)
            write(page)


if __name__ == "__main__":
    main(sys.argv[1:])
