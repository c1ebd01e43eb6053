import itertools
from contextlib import contextmanager

import numpy as np
import pytensor
import pytest

from pymc_kernel.plugin.emulation import chains, challengers
from pymc_kernel.plugin.samplers import surrogate


@pytest.fixture(autouse=True)
def mode_of_models(request):
    """Models are compiled to calls of NumPy: far sooner than to machine code, for few evaluations.

    Tests of many evaluations, and of what machine code does, are marked ``machine_code``; the long tests are compiled
    as users' models are throughout.
    """
    if request.config.getoption("--runslow") or request.node.get_closest_marker("machine_code"):
        yield
    else:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            yield


@contextmanager
def _short_blocks(request):
    if request.config.getoption("--runslow"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE"):
        patch.setattr(chains, "_BLOCK", 20)
        patch.setattr(chains, "_MOST_BLOCKS", 5)
        patch.setattr(challengers, "_COMPARED", 60)
        yield


@pytest.fixture
def short_blocks(request):
    """Chains on emulated models have blocks of 20 draws, not 50, and at most five; models are compiled to NumPy calls.

    Machine code of the gradient of such a model takes ten to thirty seconds where none is kept from before, and more
    than all else in a test of what is learned. The long tests have blocks and machine code as users have them.
    """
    with _short_blocks(request):
        yield


@pytest.fixture(scope="module")
def short_blocks_throughout(request):
    """Like ``short_blocks``, for all tests of a file and for what they share."""
    with _short_blocks(request):
        yield


@pytest.fixture
def give_draws(monkeypatch):
    """Lets chains on emulated models have normal draws with a center (d,), without the time that NUTS takes."""

    def give(center, sd):
        rng = np.random.default_rng(1)
        given = itertools.cycle(np.array(center) + np.array(sd) * rng.standard_normal((20, 4, 50, len(center))))
        monkeypatch.setattr(chains.Chains, "draw", lambda *_, **__: (next(given), 1.0))

    return give


@pytest.fixture(scope="module")
def short_tuning():
    """Chains of ``sample_surrogate`` begin at draws of what they sample: two hundred tuning draws do for tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surrogate, "_TUNE", 200)
        yield
