"""Imports run downward only, and the mathematics knows neither PyMC nor ArviZ."""

import ast
import inspect
import re
import sys
import tomllib
from importlib.resources import files

import pytest

import pymc_kernel as pk
from benchmarks.harness import ROOT

PACKAGE = ROOT / "pymc_kernel"

MATHEMATICS = (
    "kernels", "scores", "emulation", "stein", "density", "embeddings", "likelihood_free", "mcmc", "smc", "rounds",
)  # fmt: skip

# A folder or file may import what stands under it; siblings stay apart, save where named. The plugin compiles nothing:
# machine code is kept while the files under it stay as they are.
MAY_IMPORT = {
    "machine_code": set(),
    "errors": set(),
    "parallel": set(),
    "linalg": {"machine_code"},
    "kernels": {"machine_code", "errors", "parallel", "linalg"},
    "scores": {"machine_code", "errors", "parallel", "linalg", "kernels"},
    "emulation": {"errors", "parallel", "linalg", "kernels", "scores"},
    "stein": {"machine_code", "errors", "parallel", "linalg", "kernels"},
    "density": {"machine_code", "errors", "parallel", "linalg", "kernels"},
    "embeddings": {"machine_code", "errors", "parallel", "linalg", "kernels"},
    "likelihood_free": {"parallel", "linalg", "kernels"},
    "mcmc": {"machine_code", "errors", "parallel", "linalg", "kernels", "scores"},
    # Particles move by mixtures of normals, which are those of residuals.
    "smc": {"machine_code", "errors", "parallel", "linalg", "kernels", "scores", "likelihood_free", "mcmc"},
    # Rounds: a learned likelihood (likelihood_free) or a surrogate (scores), and particles that draw from it (smc).
    "rounds": {"errors", "parallel", "linalg", "kernels", "scores", "likelihood_free", "mcmc", "smc"},
    "plugin": {"errors", "parallel", "linalg", *MATHEMATICS},
    "__init__": {"errors", "plugin", *MATHEMATICS},
}
OUTSIDE_BELOW = {"numpy", "scipy", "numba"}
ARVIZ = {"arviz", "arviz_base", "arviz_plots", "arviz_stats", "xarray", "pandas", "matplotlib"}
OUTSIDE_PLUGIN = OUTSIDE_BELOW | ARVIZ | {"cloudpickle", "pymc", "pytensor", "rich"}
OUTSIDE_OF_ONE_FILE = {
    "__init__": {"lazy_loader"},
    "parallel.py": {"threadpoolctl"},
    "store.py": {"zarr"},
    "chain_checks.py": {"arviz_stats"},
}


# The same for the rooms of the plugin. Blocks offer a step to pm.sample, so they stand on top.
ROOMS = {
    "model": set(),
    "reports": {"model"},
    "emulation": {"model"},
    "samplers": {"model", "reports", "emulation"},
    "simulation": {"model", "reports"},
    "blocks": {"model", "samplers"},
}


def imported(path):
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "pymc_kernel":
                yield from (f"pymc_kernel.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def test_imports_run_downward_and_rooms_of_the_plugin_are_apart():
    for path in FILES:
        floor, *rest = (part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts)
        room = rest[0] if floor == "plugin" else None
        outside = OUTSIDE_PLUGIN if floor in ("plugin", "__init__") else OUTSIDE_BELOW
        outside = outside | OUTSIDE_OF_ONE_FILE.get(path.name if floor != "__init__" else floor, set())
        for module in imported(path):
            parts = module.split(".")
            if parts[0] == "pymc_kernel":
                assert parts[1] == floor or parts[1] in MAY_IMPORT[floor], f"{path} reaches up or sideways: {module}"
            else:
                assert parts[0] in outside | sys.stdlib_module_names, f"{path} imports {module}"
            if room and parts[1:2] == ["plugin"] and len(parts) > 2 and parts[2] in ROOMS:
                assert parts[2] == room or parts[2] in ROOMS.get(room, set()), f"{path} reaches into {module}"


def test_private_names_stay_in_their_module_and_everything_is_compiled_by_one_decorator():
    """Numba's own would keep machine code of old sources, and with a signature compile where they are imported."""
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("pymc_kernel"):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{path} imports {', '.join(private)} of {node.module}"
            name = getattr(node, "attr", getattr(node, "id", ""))
            assert path.name == "machine_code.py" or name not in ("njit", "jit"), f"{path}, line {node.lineno}"


def test_the_files_that_the_architecture_names_are_there():
    folders = "pymc_kernel", "benchmarks", "docs", "tests"
    there = {path.name for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")}
    named = set(re.findall(r"(\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 30
    assert not named - there


def test_citation_newest_changes_and_the_conda_recipe_have_the_version_and_the_same_needs():
    newest, date = re.findall(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert newest == pk.__version__
    assert f"\nversion: {newest}\n" in citation
    assert date == re.search(r"date-released: (\S+)", citation)[1]
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f"\n  version: {pk.__version__}\n" in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {f"python{project['requires-python']}", *project["dependencies"]}
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    # Of two packages a smaller part will do: without compilers, and without windows for pictures.
    found = {re.sub("^(pymc|matplotlib)-base", r"\1", line.removeprefix("    - ")) for line in run.splitlines()}
    assert {need.replace(" ", "") for need in found} == wanted
    assert files(pk).joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", [name for name in pk.__all__ if callable(getattr(pk, name))])
def test_signatures_have_types(name):
    value = getattr(pk, name)
    signature = inspect.signature(value.__init__ if inspect.isclass(value) else value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in parameters if p.annotation is p.empty] == []
    assert signature.return_annotation is not signature.empty
