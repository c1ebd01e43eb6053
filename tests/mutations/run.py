"""Break one formula after another and see whether the tests notice: ``python -m tests.mutations.run [words]``.

Every change of ``mutations.toml`` is made in a temporary copy of the project, where the tests that should see it are
run. A change that they do not see has survived: then the exit code is 1, and either a test is missing or the change
does no harm and is no use here. So is it where a formula of the list is no longer there. Words choose those changes
whose file or text contains one of them. It needs a system that can fork: the libraries are loaded once for all.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import numba
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401

ROOT = Path(__file__).parents[2]
PACKAGE = "pymc_kernel"
NEEDED = (PACKAGE, "tests", "benchmarks", "case_studies", "pyproject.toml")
TIME_LIMIT = 600  # seconds; a change may well make a loop endless

PASSED, FAILED = 10, 11  # exit codes of a child, ten more than those of pytest; all others say that nothing was tested


class Mutation(NamedTuple):
    """A change of one formula."""

    file: str  # in the package
    old: str
    new: str
    tests: tuple[str, ...]  # arguments of pytest


def mutations() -> list[Mutation]:
    """Return the list."""
    text = Path(__file__).with_name("mutations.toml").read_text()
    return [Mutation(m["file"], m["old"], m["new"], tuple(m["tests"])) for m in tomllib.loads(text)["mutation"]]


def mutated(source: str, mutation: Mutation) -> str:
    """Return the text of the file after the change; an error where the formula is not there, or not there alone."""
    count = source.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.file} has {mutation.old!r} {count} times; a change needs a text that stands once.")
    return source.replace(mutation.old, mutation.new)


def misfits(chosen: list[Mutation]) -> list[str]:
    """Return what is wrong with the list: changes that cannot be made, make no module, or have no tests."""
    found = []
    for mutation in chosen:
        try:
            source = (ROOT / PACKAGE / mutation.file).read_text()
            compile(mutated(source, mutation), mutation.file, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            found.append(str(error))
        paths = [t.split("::")[0] for t in mutation.tests if t.startswith("tests/")]
        if not paths or not all((ROOT / path).exists() for path in paths):
            found.append(f"{mutation.file}: {mutation.old} has no tests at {', '.join(mutation.tests)}")
    return found


def outcome(copy: Path, tests: tuple[str, ...], compiled: Path) -> str:
    """Return what the tests say in a copy of the project; ``compiled`` is where Numba keeps machine code."""
    said = copy / "said.txt"
    child = multiprocessing.get_context("fork").Process(target=_run_tests, args=(copy, tests, compiled, said))
    child.start()
    child.join(TIME_LIMIT)
    if child.is_alive():
        child.kill()
        child.join()
        return "caught (time)"
    if child.exitcode == PASSED:
        return "survived"
    return "caught" if child.exitcode == FAILED else f"not run: {said.read_text()[-1000:]}"


def _run_tests(copy, tests, compiled, said):
    """Run in a process of its own, forked off with the libraries loaded and nothing of the project."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("tests", PACKAGE)]:
        del sys.modules[name]
    os.chdir(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    os.environ["NUMBA_CACHE_DIR"] = str(compiled)
    numba.core.config.reload_config()
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    import pymc_kernel

    # Another copy of the package, as an installation's, would let every change survive.
    os._exit(10 + int(code) if copy in Path(pymc_kernel.__file__).parents else 1)


def one(copy: Path, mutation: Mutation, warm: Path) -> str:
    """Return the outcome of one change, after which the copy is as it was."""
    path, cold = copy / PACKAGE / mutation.file, copy / "compiled"
    original, times = path.read_text(), path.stat()
    path.write_text(mutated(original, mutation))
    # Machine code belongs to all sources but the plugin's: what is warm would be overwritten.
    is_warm = mutation.file.startswith("plugin/")
    try:
        return outcome(copy, mutation.tests, warm if is_warm else cold)
    finally:
        path.write_text(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        shutil.rmtree(cold, ignore_errors=True)


def main() -> int:
    """Print a line for each change, and return whether one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only changes whose file or text contains one of these")
    words = parser.parse_args().words
    chosen = [m for m in mutations() if not words or any(w in m.file or w in m.old for w in words)]
    if wrong := misfits(chosen):
        print("\n".join(wrong))
        return 1
    escaped = 0
    with tempfile.TemporaryDirectory() as folder:
        copy, warm = Path(folder) / "project", Path(folder) / "warm"
        for name in NEEDED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "figures"))
            else:
                shutil.copy2(source, copy / name)
        for tests in sorted({m.tests for m in chosen}):
            result = outcome(copy, tests, warm)
            if result != "survived":
                print(f"without any change the tests {' '.join(tests)} do not pass: {(copy / 'said.txt').read_text()}")
                return 1
        for mutation in chosen:
            begin = time.perf_counter()
            result = one(copy, mutation, warm)
            escaped += not result.startswith("caught")
            print(
                f"{result:13s} {time.perf_counter() - begin:4.0f} s  {mutation.file}: {mutation.old} -> {mutation.new}",
                flush=True,
            )
    print(f"{len(chosen) - escaped} of {len(chosen)} changes caught")
    return int(escaped > 0)


if __name__ == "__main__":
    sys.exit(main())
