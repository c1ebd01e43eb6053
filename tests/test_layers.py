"""Imports run downward only, and the mathematics knows neither PyMC nor ArviZ."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pymc_kernel"

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
    "smc": {"machine_code", "errors", "parallel", "linalg", "kernels", "scores", "mcmc"},
    # Rounds: a learned likelihood (likelihood_free) or a surrogate (scores), and particles that draw from it (smc).
    "rounds": {"errors", "parallel", "linalg", "kernels", "scores", "likelihood_free", "smc"},
    "plugin": {
        "errors",
        "parallel",
        "linalg",
        "kernels",
        "scores",
        "emulation",
        "stein",
        "density",
        "embeddings",
        "likelihood_free",
        "mcmc",
        "smc",
        "rounds",
    },
    "__init__": {
        "kernels",
        "scores",
        "emulation",
        "stein",
        "density",
        "embeddings",
        "likelihood_free",
        "mcmc",
        "smc",
        "rounds",
        "plugin",
        "errors",
    },
}
OUTSIDE_BELOW = {"numpy", "scipy", "numba"}
ARVIZ = {"arviz", "arviz_base", "arviz_plots", "arviz_stats", "xarray", "pandas", "matplotlib"}
OUTSIDE_PLUGIN = OUTSIDE_BELOW | ARVIZ | {"cloudpickle", "pymc", "pytensor", "rich"}


# The same for the rooms of the plugin. Blocks offer the steps to pm.sample, which have to know blocks: that one arrow
# points up.
ROOMS = {
    "blocks": {"model", "samplers"},
    "model": {"blocks"},
    "reports": {"blocks", "model"},
    "emulation": {"blocks", "model"},
    "samplers": {"blocks", "model", "reports"},
    "simulation": {"blocks", "model", "reports"},
}


def floor_of(path):
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "pymc_kernel":
                yield from (f"pymc_kernel.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    floor = floor_of(path)
    outside = OUTSIDE_PLUGIN if floor in ("plugin", "__init__") else OUTSIDE_BELOW
    if floor == "__init__":
        outside = outside | {"lazy_loader"}
    if floor == "parallel":
        outside = outside | {"threadpoolctl"}  # here and nowhere else
    if path.name == "store.py":
        outside = outside | {"zarr"}
    for module in imported(path):
        parts = module.split(".")
        if parts[0] == "pymc_kernel":
            assert parts[1] == floor or parts[1] in MAY_IMPORT[floor], f"{path.name} reaches up or sideways: {module}"
        else:
            assert parts[0] in outside | sys.stdlib_module_names, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "plugin").rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_of_the_plugin_are_apart(path):
    room = path.relative_to(PACKAGE / "plugin").parts[0].removesuffix(".py")
    for module in imported(path):
        parts = module.split(".")
        if parts[:2] == ["pymc_kernel", "plugin"] and len(parts) > 2 and parts[2] in ROOMS:
            assert parts[2] == room or parts[2] in ROOMS.get(room, set()), f"{room} reaches into {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_private_names_stay_in_their_module(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("pymc_kernel"):
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            assert not private, f"{path.name} imports {', '.join(private)} of {node.module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_everything_is_compiled_by_one_decorator(path):
    """Numba's own would keep machine code of old sources, and with a signature compile where they are imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(node, "attr", getattr(node, "id", ""))
        assert path.name == "machine_code.py" or name not in ("njit", "jit"), f"line {node.lineno}"
