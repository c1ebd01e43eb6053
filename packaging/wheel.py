"""Install the wheel elsewhere and run the examples of README and documentation: ``python packaging/wheel.py``.

``--pythons`` are interpreters, or versions that uv finds; one environment each. ``--oldest`` installs the oldest
release of each dependency that ``pyproject.toml`` allows; its warnings are no errors. ``--tests`` says what is run
instead; all other options are pytest's. Environments stay in ``build/wheel`` until the next run. The exit code is that
of the worst environment.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "wheel"
PACKAGE = "pymc_kernel"
EXAMPLES = ("tests/test_readme.py", "tests/docs/test_examples.py")
EXTRAS = "[case-studies,test]"
UV = (sys.executable, "-m", "uv", "--quiet")
SHOWN = ("numba", "numpy", "scipy", "pytensor", "pymc", "arviz")


def build() -> Path:
    """Return the wheel, made anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([*UV, "build", "--wheel", "--out-dir", FOLDER, ROOT], check=True)
    (wheel,) = FOLDER.glob("*.whl")
    return wheel


def environment(wheel: Path, python: str, oldest: bool) -> Path:
    """Return the interpreter of a new environment that holds the wheel, and beside it what tests need."""
    home = FOLDER / f"{Path(python).name}{'-oldest' if oldest else ''}"
    interpreter = home / "bin" / "python"
    subprocess.run([*UV, "venv", "--python", python, home], check=True)
    install = [*UV, "pip", "install", "--python", interpreter]
    if oldest:
        subprocess.run([*install, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml"], check=True)
    subprocess.run([*install, wheel], check=True)
    # What is there stays as it is.
    frozen = subprocess.run([*UV, "pip", "freeze", "--python", interpreter], check=True, capture_output=True, text=True)
    limits = FOLDER / "limits.txt"
    limits.write_text("\n".join(line for line in frozen.stdout.splitlines() if "==" in line))
    subprocess.run([*install, "--constraint", limits, f"{wheel}{EXTRAS}"], check=True)
    return interpreter


def versions(interpreter: Path) -> str:
    """Return what is installed, in one line."""
    code = f"import sys; from importlib.metadata import version; print(sys.version.split()[0], *map(version, {SHOWN}))"
    found = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return ", ".join(f"{name} {number}" for name, number in zip(("Python", *SHOWN), found, strict=True))


def check(interpreter: Path, *arguments: str) -> int:
    """Return pytest's exit code, of the tests in a folder without the package."""
    away = interpreter.parents[1] / "away"
    away.mkdir()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in {line.partition("/")[0] for line in listed.splitlines()} - {PACKAGE}:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, away / name)
    surroundings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "MPLBACKEND": "agg"}
    command = [interpreter, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=away, env=surroundings, check=False).returncode


def main() -> int:
    """Check all environments that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--oldest", action="store_true")
    parser.add_argument("--tests", nargs="*", default=["--runslow", *EXAMPLES])
    asked, for_pytest = parser.parse_known_args()
    wheel, worst = build(), 0
    for python in asked.pythons:
        interpreter = environment(wheel, python, asked.oldest)
        print(versions(interpreter), flush=True)
        worst = max(worst, check(interpreter, *asked.tests, *for_pytest, *(["-W", "default"] if asked.oldest else [])))
    return worst


if __name__ == "__main__":
    sys.exit(main())
