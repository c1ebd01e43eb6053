import gc
import os
import sys

# PyTensor's fast-math rounds the last bit of a log density otherwise in the process that filled its disk cache than
# in one that reads it, and many tests compare draws bit for bit. Without a C++ compiler it folds constants by NumPy:
# it would compile and load a library for every constant expression of a model, most of a second each. Nor does it note
# for every variable where in the code it was made, which took a fifth of the time of tests that compile models.
_FLAGS = [os.environ.get("PYTENSOR_FLAGS"), "numba__fastmath=False", "cxx=", "traceback__limit=0"]
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, _FLAGS))

# Test processes run side by side, one a core; threads of BLAS that wait for each other would take ten times as long.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Models are many small objects that stay: looking through them again and again for what can be freed was 8 % of the
# time of tests that compile many of them.
gc.set_threshold(100_000, 50, 100)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402


def pytest_collection_finish():
    """What is there before the first test stays, and need not be looked through."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true", help="also run the tests that are marked as long or slow")


def pytest_configure(config):
    settings.register_profile(
        "project",
        max_examples=200 if config.getoption("--runslow") else 10,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("project")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--runslow"):
        return
    for item in items:
        if "slow" in item.keywords or "long" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="long test: make test-slow"))


@pytest.fixture(scope="module")
def quick_models():
    """Models of this file are compiled to calls of NumPy: far sooner than to machine code, for few evaluations."""
    import pytensor

    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(autouse=True)
def no_mode_is_left_behind():
    """Of PyTensor: all tests that follow in the process would run another code, and slower."""
    pytensor = sys.modules.get("pytensor")
    before = pytensor and pytensor.config.mode
    yield
    assert pytensor is None or pytensor.config.mode == before


@pytest.fixture
def rng():
    return np.random.default_rng(20140614)
