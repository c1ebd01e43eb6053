"""The harness of the benchmarks: options, processes, tables, rows that are kept; and that every script starts."""

import importlib
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import ablation_kbr, ablations, harness

ROOT = Path(__file__).parent.parent
SCRIPTS = [
    f"{folder}.{path.stem}"
    for folder in ("benchmarks", "case_studies")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "harness.run(main)" in path.read_text()
]


def test_make_bench_runs_every_script_and_contents_are_the_headings():
    recipe = re.search(r"^bench:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)[1]
    assert sorted(re.findall(r"-m ((?:benchmarks|case_studies)\.\w+)", recipe)) == sorted(SCRIPTS)
    text = harness.RESULTS.read_text()
    assert f"<!-- contents -->\n{harness.contents(text)}\n<!-- /contents -->" in text
    assert harness.contents("# t\n\n## Cox's _k_: one (`python -m a.b_c`)\n\n### More\n") == (
        "- [Cox's _k_: one](#coxs-_k_-one-python--m-ab_c)\n  - [More](#more)"
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_parser_and_a_place_for_its_tables(name):
    module = importlib.import_module(name)
    parser = harness.parser_of(module.main)
    assert set(vars(parser.parse_args([]))) == set(inspect.signature(module.main).parameters)
    assert parser.format_help()
    for table in (value for value in vars(module).values() if isinstance(value, harness.Table)):
        for file in table.files:
            text = file.read_text()
            assert text.count(f"<!-- {table.marker} -->") == text.count(f"<!-- /{table.marker} -->") == 1, table.marker


OURS = ablations.STEIN, ablations.KHMC, ablations.LIKELIHOOD, ablations.OUTPUTS, ablations.SEARCH
PARTS = (*OURS, *ablations.PARTICLES.values())
OF_RULES = [{k.removeprefix("pymc_kernel."): v for k, v in of.items()} for of in ablation_kbr.MECHANISMS.values()]


@pytest.mark.parametrize("patches", [*(of for part in PARTS for of in part.values()), *OF_RULES], ids=" ".join)
def test_what_an_ablation_switches_off_is_there(patches):
    with ablations._without(patches):
        pass


def smallest(main):
    """Return the options of the shortest run: of everything one, of what is repeated two."""
    for name, parameter in inspect.signature(main).parameters.items():
        default, option = parameter.default, f"--{name.replace('_', '-')}"
        if isinstance(default, tuple):
            yield from (option, str(min(default) if type(default[0]) is int else default[0]))
        elif name == "quick":
            yield option
        elif name in ("jobs", "cores"):
            yield from (option, "1")
        elif type(default) is int and name not in ("seed", "first_seed"):
            yield from (option, str(min(default, LEAST.get(name, 2))))


LEAST = {"draws": 50, "tune": 50, "evaluations": 40, "particles": 50}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs_in_a_copy(name, tmp_path):
    """To its end, or for 45 seconds."""
    for folder in ("benchmarks", "case_studies"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("docs", "pymc_kernel"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for kept in (tmp_path / "benchmarks" / "rows").glob("*"):
        kept.unlink()
    command = [sys.executable, "-m", name, *smallest(importlib.import_module(name).main)]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, said = process.communicate(timeout=45.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return
    if "needs" in said[-200:]:  # it says which other software
        pytest.skip(said.splitlines()[-1])
    assert process.returncode == 0, said[-2000:]


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
    assert "| y | 2 |  |\n| x | 1 | new |\n\n*Last written " in text
    assert text.endswith("<!-- /t -->\nafter\n")
    assert f"numpy {version('numpy')}," in text
    table.write([["x", 1, "newer"]])
    assert table.files[0].read_text().count("*Last written ") == 1
    harness.Table("t", ("a", "b", "c"), files=table.files).write([["z", None, 0.5]], below="Below.")
    text = table.files[0].read_text()
    assert "|---|---|---|\n| z |  | 0.5 |\n\nBelow.\n\n*Last written " in text
    assert text.endswith(".*\n<!-- /t -->\nafter\n")


def product_of(word, factor, seed):
    return f"{word}{factor * seed}"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_table_is_filled_row_by_row(table, jobs, capsys):
    keys = [("x", 1), ("z", 3)]
    table.fill(product_of, lambda group: ["+".join(group)], 3, keys=keys, jobs=jobs)
    assert capsys.readouterr().out == "x 1 x0+x1+x2\nz 3 z0+z3+z6\n"
    text = table.files[0].read_text()
    assert "| y | 2 |  |\n| z | 3 | z0+z3+z6 |\n| x | 1 | x0+x1+x2 |\n\n*Last written " in text
    assert text.endswith(".*\n<!-- /t -->\nafter\n")


def interrupted(number):
    """Swallow an interrupt, as a sampler may that returns the draws it has."""
    if number == 2:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return {"number": -1}
    return {"number": number}


def test_rows_survive_an_interrupted_run_are_not_run_again_and_that_of_more_runs_stays(tmp_path):
    rows = harness.Rows(tmp_path / "rows.jsonl", lambda row: (row["number"],))
    before = signal.getsignal(signal.SIGINT)
    assert rows.complete(interrupted, [(1,), (2,), (3,)], json.dumps) == [{"number": 1}]
    assert signal.getsignal(signal.SIGINT) is before
    with rows.path.open("a") as file:
        file.write('\n{"number": 2, "ru')  # of a run that was killed
    found = rows.complete(lambda n: {"number": n, "run": 2}, [(1,), (3,)], json.dumps)
    assert found == [{"number": 1}, {"number": 3, "run": 2}]
    assert rows.complete(lambda n: {"number": n, "run": 3}, [(1,)], json.dumps, again=True)[0]["run"] == 3
    before, new = [["a", "3", "old"], ["b", "3", "old"]], [["a", 2, "new"], ["b", 3, "new"], ["c", 1, "new"]]
    found = harness.with_most_runs(new, before, key=lambda row: row[0], runs=lambda row: int(row[1]))
    assert found == [["a", "3", "old"], ["b", "3", "new"], ["c", "1", "new"]]
