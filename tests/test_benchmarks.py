"""The harness of the benchmarks: options, processes, tables, rows that are kept; and that every script starts."""

import importlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from benchmarks import harness

ROOT = Path(__file__).parent.parent
SCRIPTS = [
    f"{folder}.{path.stem}"
    for folder in ("benchmarks", "case_studies")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "harness.run(main)" in path.read_text()
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_parser(name):
    main = importlib.import_module(name).main
    parser = harness.parser_of(main)
    assert set(vars(parser.parse_args([]))) == set(main.__code__.co_varnames[: main.__code__.co_argcount])
    assert parser.format_help()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_table_has_its_place(name):
    module = importlib.import_module(name)
    tables = [value for value in vars(module).values() if isinstance(value, harness.Table)]
    places = [(file, table.marker) for table in tables for file in table.files]
    pattern = r'(?:write_between\(harness.RESULTS, |harness.Table\()"([\w-]+)"'
    written = re.findall(pattern, Path(module.__file__).read_text())
    for file, marker in [*places, *((harness.RESULTS, marker) for marker in written)]:
        text = file.read_text()
        assert text.count(f"<!-- {marker} -->") == text.count(f"<!-- /{marker} -->") == 1, marker


def test_all_scripts_go_through_the_harness():
    assert len(SCRIPTS) >= 28
    for name in SCRIPTS:
        assert "argparse" not in (ROOT / f"{name.replace('.', '/')}.py").read_text()


def example(repetitions=3, level=0.5, parts=("one", "two"), seeds=(1, 2), folder: Path | None = None, again=False):
    """Do nothing."""


def test_options_come_from_the_arguments_of_main(capsys):
    parser = harness.parser_of(example)
    assert vars(parser.parse_args([])) == {
        "repetitions": 3, "level": 0.5, "parts": ("one", "two"), "seeds": (1, 2), "folder": None, "again": False,
    }  # fmt: skip
    words = ["--repetitions", "7", "--level", "2", "--parts", "two", "--seeds", "5", "--folder", "a/b", "--again"]
    told = parser.parse_args(words)
    assert vars(told) == {
        "repetitions": 7, "level": 2.0, "parts": ["two"], "seeds": [5], "folder": Path("a/b"), "again": True,
    }  # fmt: skip
    with pytest.raises(SystemExit):
        parser.parse_args(["--parts", "three"])
    assert "invalid choice: 'three'" in capsys.readouterr().err


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "RESULTS.md"
    file.write_text(
        "before\n\n<!-- t -->\n| a | b | c |\n|---|---|---|\n| x | 1 | old |\n| y | 2 |  |\n<!-- /t -->\nafter\n"
    )
    return harness.Table("t", ("a", "b", "c"), [("y", 2), ("z", 3), ("x", 1)], (file,))


def test_rows_that_were_not_run_stay_and_keys_give_the_order(table):
    table.write([["x", 1, "new"]], "A note.")
    text = table.files[0].read_text()
    assert text.startswith("before\n\n<!-- t -->\nA note.\n\n| a | b | c |\n")
    assert text.endswith("| y | 2 |  |\n| x | 1 | new |\n<!-- /t -->\nafter\n")


def test_without_keys_all_rows_are_replaced(table):
    harness.Table("t", ("a", "b", "c"), files=table.files).write([["z", None, 0.5]], below="Below.")
    assert table.files[0].read_text().endswith("|---|---|---|\n| z |  | 0.5 |\n\nBelow.\n<!-- /t -->\nafter\n")


def product_of(word, factor, seed):
    return f"{word}{factor * seed}"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_table_is_filled_row_by_row(table, jobs, capsys):
    keys = [("x", 1), ("z", 3)]
    table.fill(product_of, lambda group: ["+".join(group)], 3, keys=keys, jobs=jobs)
    assert capsys.readouterr().out == "x 1 x0+x1+x2\nz 3 z0+z3+z6\n"
    assert (
        table.files[0]
        .read_text()
        .endswith("| y | 2 |  |\n| z | 3 | z0+z3+z6 |\n| x | 1 | x0+x1+x2 |\n<!-- /t -->\nafter\n")
    )


def interrupted(number):
    """Swallow an interrupt, as a sampler may that returns the draws it has."""
    if number == 2:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return {"number": -1}
    return {"number": number}


def test_rows_survive_an_interrupted_run_and_are_not_run_again(tmp_path):
    rows = harness.Rows(tmp_path / "rows.jsonl", lambda row: (row["number"],))
    before = signal.getsignal(signal.SIGINT)
    assert rows.complete(interrupted, [(1,), (2,), (3,)], json.dumps) == [{"number": 1}]
    assert signal.getsignal(signal.SIGINT) is before
    assert rows.complete(lambda n: {"number": n, "run": 2}, [(1,), (3,)], json.dumps) == [
        {"number": 1},
        {"number": 3, "run": 2},
    ]
    assert rows.complete(lambda n: {"number": n, "run": 3}, [(1,)], json.dumps, again=True)[0]["run"] == 3


def test_of_two_rows_that_of_more_runs_stays():
    before, new = [["a", "3", "old"], ["b", "3", "old"]], [["a", 2, "new"], ["b", 3, "new"], ["c", 1, "new"]]
    found = harness.with_most_runs(new, before, key=lambda row: row[0], runs=lambda row: int(row[1]))
    assert found == [["a", "3", "old"], ["b", "3", "new"], ["c", "1", "new"]]
