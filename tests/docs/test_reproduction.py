"""REPRODUCTION.md: every figure has a row, every command starts, every number of ours is in the table that it names."""

import importlib
import inspect
import re
import shlex

import pytest

from benchmarks import harness

TEXT = (harness.ROOT / "REPRODUCTION.md").read_text()
RESULTS = harness.RESULTS.read_text()
VERDICTS = ("same", "better", "worse", "partly", "other protocol", "not run", "cannot be had")
FIGURES = {  # figures and tables that report results, by a word of the heading of their source
    "thesis": "3.4 3.5 3.6 3.7 4.2 4.3 4.4 4.5 4.6 5.2 5.3 5.4 5.5 5.6 6.2 6.3 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 8.9",
    "JMLR": "1 2 3 4",
    "NIPS": "1 2 3 4",
    "Importance": "1 2 5 6",
    "bandwidth": "2 3 4 5 6 7 8",
}


def rows_of(text):
    """Return the cells of all rows of the tables of a text."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| Source", "|---"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = rows_of(TEXT)


def block(marker):
    """Return what stands in the results between the marks of a name."""
    return RESULTS.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0]


def numbers(text):
    """Return the numbers of a text, links left out."""
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]\d)", re.sub(r"\]\([^)]*\)", "", text))


def test_every_row_has_all_cells_and_a_verdict():
    assert len(ROWS) > 50
    for row in ROWS:
        assert len(row) == 6, row[0]
        assert row[5].startswith(VERDICTS), row[0]
        assert (row[3] == row[4] == "-") or row[4].startswith("`python -m "), row[0]


@pytest.mark.parametrize("source", FIGURES)
def test_every_figure_has_a_row(source):
    (part,) = [part for part in TEXT.split("\n## ")[1:] if source in part.split("\n")[0]]
    seen = {number for row in rows_of(part) for number in re.findall(r"\d+(?:\.\d+)?", row[0])}
    assert set(FIGURES[source].split()) <= seen


@pytest.mark.parametrize("command", sorted({row[4].strip("`") for row in ROWS if row[4] != "-"}))
def test_commands_start(command):
    name, *arguments = shlex.split(command.removeprefix("python -m "))
    module = importlib.import_module(name)
    if "harness.run(main)" in inspect.getsource(module):
        harness.parser_of(module.main).parse_args(arguments)
    else:
        assert not arguments


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] != "-"], ids=lambda row: row[0])
def test_numbers_are_in_their_table(row):
    ours, there = ({number.replace(",", "") for number in numbers(text)} for text in (row[2], block(row[3].strip("`"))))
    assert ours
    assert ours <= there
