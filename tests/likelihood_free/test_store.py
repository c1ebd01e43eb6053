import numpy as np
import pytest

from pymc_kernel.likelihood_free import ArraySpec, open_store

SPECS = {
    "prior/a": ArraySpec((), "float64", (), np.nan),
    "prior_predictive/y": ArraySpec((3,), "float64", ("t",), np.nan),
}
COORDS = {"t": list("abc")}


def opened(path, draws=10, batch_size=4, **identity):
    return open_store(path, SPECS, COORDS, draws, batch_size, {"seed": "1", "model": "m"} | identity, {"seed": "7"})


def batch(store, index):
    rows = np.arange(store.rows(index).start, store.rows(index).stop, dtype=float)
    return {"prior/a": rows, "prior_predictive/y": rows[:, None] + np.arange(3)}


def test_a_store_remembers_what_is_done(tmp_path):
    store, _ = opened(tmp_path / "s")
    store.write(1, batch(store, 1))
    store.write(2, batch(store, 2), is_complete=False)
    again, identity = opened(tmp_path / "s", batch_size=None, seed=None)
    assert again.left().tolist() == [0, 2]
    assert again.batch_size == 4
    assert identity["seed"] == "1"
    with pytest.raises(ValueError, match="holds 10 draws"):
        opened(tmp_path / "s", draws=9)


def test_other_things_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no finished store"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"must be a directory.*is a file"):
        opened(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("draws", "size"), [(1, 1), (150, 1), (1000, 10), (200_000, 1000)])
def test_default_batch_size(draws, size):
    assert opened(None, draws, None)[0].batch_size == size
