import os

# PyTensor's fast-math rounds the last bit of a log density otherwise in the process that filled its disk cache than
# in one that reads it, and many tests compare draws bit for bit.
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), "numba__fastmath=False"]))

# Test processes run side by side, one a core; threads of BLAS that wait for each other would take ten times as long.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true", help="also run the long statistical tests")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--runslow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="long statistical test: make test-slow"))


@pytest.fixture
def rng():
    return np.random.default_rng(20140614)
