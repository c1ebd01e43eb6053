"""The list of changes fits the package; ``tests/mutations/run.py`` makes them."""

from collections import Counter

import pytest

from tests.mutations import run

MUTATIONS = run.mutations()
FOLDERS = {
    "kernels",
    "scores",
    "emulation",
    "stein",
    "embeddings",
    "density",
    "mcmc",
    "smc",
    "likelihood_free",
    "rounds",
    "plugin",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.file}: {m.old}")
def test_every_formula_is_still_there(mutation):
    source = (run.ROOT / run.PACKAGE / mutation.file).read_text()
    compile(run.mutated(source, mutation), mutation.file, "exec")
    paths = [t.split("::")[0] for t in mutation.tests if t.startswith("tests/")]
    assert paths
    assert all((run.ROOT / path).exists() for path in paths)


def test_all_folders_with_formulas_are_in_the_list():
    counts = Counter(m.file.split("/")[0] for m in MUTATIONS)
    assert len(MUTATIONS) >= 60
    assert set(counts) == FOLDERS | {"linalg.py"}
    assert min(counts.values()) >= 5
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)


def test_a_text_that_is_not_there_once_is_refused():
    change = MUTATIONS[0]
    for source in ("", change.old * 2):
        with pytest.raises(ValueError, match="stands once"):
            run.mutated(source, change)
