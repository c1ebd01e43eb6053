"""The version and what the package needs are the same wherever they are written; all public functions have types."""

import inspect
import re
import tomllib
from importlib.resources import files

import pytest

import pymc_kernel as pk
from benchmarks.harness import ROOT


def test_citation_and_newest_changes_have_the_version_and_its_date():
    newest, date = re.findall(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert newest == pk.__version__
    assert f"\nversion: {newest}\n" in citation
    assert date == re.search(r"date-released: (\S+)", citation)[1]


def test_the_conda_recipe_has_the_version_and_the_same_needs():
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f"\n  version: {pk.__version__}\n" in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {f"python{project['requires-python']}", *project["dependencies"]}
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    # Of two packages a smaller part will do: without compilers, and without windows for pictures.
    found = {re.sub("^(pymc|matplotlib)-base", r"\1", line.removeprefix("    - ")) for line in run.splitlines()}
    assert {need.replace(" ", "") for need in found} == wanted


@pytest.mark.parametrize("name", [name for name in pk.__all__ if callable(getattr(pk, name))])
def test_signatures_have_types(name):
    value = getattr(pk, name)
    signature = inspect.signature(value.__init__ if inspect.isclass(value) else value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in parameters if p.annotation is p.empty] == []
    assert signature.return_annotation is not signature.empty


def test_the_package_says_that_it_has_types():
    assert files(pk).joinpath("py.typed").is_file()
