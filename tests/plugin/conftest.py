import pytensor
import pytest


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
