"""Stores of simulations: in memory, or a zarr store (version 3 format) from which a killed run resumes."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

_FORMAT = 1  # of the store on disk: a later one is refused, not misread
_DONE, _INCOMPLETE = 1, 2


class ArraySpec(NamedTuple):
    """An array with one entry for each draw."""

    shape: tuple[int, ...]  #: of one draw
    dtype: str
    dims: tuple[str, ...]
    fill: float | int


class Store:
    """Arrays (1, draws, ...), written batch by batch: of NumPy, or of zarr with one chunk a batch.

    The mark of a batch is written after its arrays, so a mark that is there can be trusted. One process writes; workers
    hand their results to it.
    """

    def __init__(self, arrays: dict, is_done, draws: int, batch_size: int):
        self.arrays, self.is_done, self.draws, self.batch_size = arrays, is_done, draws, batch_size

    def rows(self, index: int) -> slice:
        """Return the draws of a batch."""
        return slice(index * self.batch_size, min((index + 1) * self.batch_size, self.draws))

    def write(self, index: int, arrays: dict[str, np.ndarray], is_complete: bool = True) -> None:
        """Put the arrays (size, ...) of a batch in their place."""
        for name, values in arrays.items():
            self.arrays[name][0, self.rows(index)] = values
        self.is_done[index] = _DONE if is_complete else _INCOMPLETE

    def left(self) -> np.ndarray:
        """Return the batches that are still to be simulated, those that failed last time included."""
        return np.flatnonzero(self.is_done[:] != _DONE)


def open_store(
    path: str | Path | None, specs: dict[str, ArraySpec], coords: dict, draws: int, batch_size: int | None,
    identity: dict, defaults: dict,
) -> tuple[Store, dict]:  # fmt: skip
    """Return the store at ``path``, which is made if there is none, and the identity that it was made with.

    Its arrays are named ``group/variable``, and ``xarray.open_datatree`` reads them. Without a path it is in memory.
    ``specs`` says what each array holds, ``coords`` has the labels of dimensions. More ``draws`` than the store holds
    extend it; ``batch_size`` is by default that of the store, for a new one a hundredth of the draws, at most 1,000.
    ``identity`` is what the simulations depend on, as texts, None for "as in the store", in a new one for ``defaults``.
    Raises ``ImportError`` without zarr, ``ValueError`` for a store made with other settings, which the message lists,
    and for anything else at ``path``.
    """
    # The default depends on the number of draws alone, so that runs can be repeated.
    own_size = batch_size or min(max(draws // 100, 1), 1000)
    whole = {key: defaults[key] if value is None else value for key, value in identity.items()}
    if path is None:
        arrays = {name: np.full((1, draws, *s.shape), s.fill, dtype=s.dtype) for name, s in specs.items()}
        return Store(arrays, np.zeros(-(-draws // own_size), dtype=np.uint8), draws, own_size), whole
    try:
        import zarr
    except ImportError:
        raise ImportError('a store needs zarr: pip install "pymc_kernel[store]".') from None
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"store must be a directory, or a path where nothing is yet: {path} is a file.")
    if not path.exists() or not any(path.iterdir()):
        _make(zarr, path, specs, coords, draws, own_size, whole)
    return _opened(zarr, path, specs, coords, draws, batch_size, identity)


def _make(zarr, path, specs, coords, draws, batch_size, identity):
    """Make a store under another name and rename it once it is complete, so that a run killed here can begin again."""
    making = path.with_name(f"{path.name}.making")
    group = zarr.open_group(making, mode="w", zarr_format=3)
    for name, spec in specs.items():
        shape, piece = (1, draws, *spec.shape), (1, batch_size, *(max(s, 1) for s in spec.shape))
        options = {"dtype": spec.dtype, "fill_value": spec.fill, "dimension_names": ("chain", "draw", *spec.dims)}
        group.create_array(name, shape=shape, chunks=piece, **options)
    group.create_array("done", shape=(-(-draws // batch_size),), chunks=(1,), dtype="u1", dimension_names=("batch",))
    _write_coords(group, specs, coords, draws)
    group.attrs["pymc_kernel"] = {"format": _FORMAT, "batch_size": batch_size, "identity": identity}
    if path.exists():
        path.rmdir()
    making.rename(path)


def _write_coords(group, specs, coords, draws):
    for parent in {name.rpartition("/")[0] for name in specs}:
        used = {d for name, s in specs.items() if name.rpartition("/")[0] == parent for d in s.dims}
        labels = {"chain": np.arange(1), "draw": np.arange(draws)} | {d: v for d, v in coords.items() if d in used}
        for dim, values in labels.items():
            values = np.asarray(values)
            if values.dtype.kind not in "biuf":
                values = values.astype(str)
            group.create_array(f"{parent}/{dim}", data=values, dimension_names=(dim,), overwrite=True)


def _opened(zarr, path, specs, coords, draws, batch_size, identity):
    try:
        group = zarr.open_group(path, mode="r+", zarr_format=3)
        made = group.attrs["pymc_kernel"]
    except (KeyError, FileNotFoundError):
        raise ValueError(f"{path} is there and is no finished store: give another path, or remove it.") from None
    stored = made["identity"] | {"batch size": made["batch_size"], "format": made["format"]}
    wanted = {key: stored.get(key) if value is None else value for key, value in identity.items()}
    wanted |= {"batch size": batch_size or made["batch_size"], "format": _FORMAT}
    differs = [f"{k}: {_short(stored.get(k))} there, {_short(v)} now" for k, v in wanted.items() if v != stored.get(k)]
    if differs:
        raise ValueError(
            f"the store {path} was made with other settings, and its simulations would not fit. What differs: "
            f"{'; '.join(differs)}. Give another path, or the old settings."
        )
    there = group[next(iter(specs))].shape[1]
    if draws < there:
        raise ValueError(f"the store {path} holds {there} draws; ask for that many or more, got {draws}.")
    if draws > there:
        _extend(group, specs, coords, there, draws, made["batch_size"])
    return Store({name: group[name] for name in specs}, group["done"], draws, made["batch_size"]), stored


def _extend(group, specs, coords, before, draws, batch_size):
    """Make room for more draws; a last batch that was not full is simulated again, with the same results."""
    done = group["done"]
    done.resize((-(-draws // batch_size),))
    if before % batch_size:
        done[before // batch_size] = 0
    _write_coords(group, specs, coords, draws)
    for name, spec in reversed(specs.items()):  # the first one last, as its size is taken for the store's
        group[name].resize((1, draws, *spec.shape))


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
