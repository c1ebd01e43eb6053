"""The version and what the package needs are the same wherever they are written."""

import re
import tomllib
from pathlib import Path

import pymc_kernel as pk

ROOT = Path(__file__).parent.parent


def test_citation_has_the_version():
    assert f"\nversion: {pk.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_newest_changes_are_those_of_the_version():
    newest, date = re.findall(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0]
    assert newest == pk.__version__
    assert date == re.search(r"date-released: (\S+)", (ROOT / "CITATION.cff").read_text())[1]


def test_the_conda_recipe_has_the_version_and_the_same_needs():
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f"\n  version: {pk.__version__}\n" in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {f"python{project['requires-python']}", *project["dependencies"]}
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    # Of two packages a smaller part will do: without compilers, and without windows for pictures.
    found = {re.sub("^(pymc|matplotlib)-base", r"\1", line.removeprefix("    - ")) for line in run.splitlines()}
    assert {need.replace(" ", "") for need in found} == wanted
