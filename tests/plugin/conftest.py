from contextlib import contextmanager, nullcontext

import pytensor
import pytest

from pymc_kernel.plugin.emulation import chains, challengers
from pymc_kernel.plugin.samplers import surrogate
from tests.plugin.models import normal_draws, without_gradient

#: Of chains on emulated models blocks of 20 draws, not 50, and at most five; 200 tuning draws of ``sample_surrogate``,
#: whose chains begin at draws of what they sample; and 16 draws whose log densities are compared.
SHORT = {(chains, "_BLOCK"): 20, (chains, "_MOST_BLOCKS"): 5, (surrogate, "TUNE"): 200, (challengers, "COMPARED"): 16}
FULL = {setting: getattr(*setting) for setting in SHORT}
MODE = pytensor.config.mode


@contextmanager
def _running_with(settings, mode):
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode=mode):
        for (module, name), value in settings.items():
            patch.setattr(module, name, value)
        yield


@pytest.fixture(scope="module", autouse=True)
def short_runs():
    """Models are compiled to calls of NumPy, and chains on emulated models are short.

    Machine code of the gradient of such a model takes ten to thirty seconds where none is kept from before, and more
    than all else in a test of what is learned. The slow tests have chains and machine code as users have them.
    """
    with _running_with(SHORT, "FAST_COMPILE"):
        yield


@pytest.fixture(scope="module")
def as_users_run():
    """Returns a context in which runs are those of users."""
    return lambda: _running_with(FULL, MODE)


@pytest.fixture(autouse=True)
def machine_code_where_marked(request, as_users_run):
    """Tests of many evaluations, and of what machine code does, are marked ``machine_code``, if they are not slow."""
    with as_users_run() if _runs_as_users(request) else nullcontext():
        yield


def _runs_as_users(request):
    return any(map(request.node.get_closest_marker, ("slow", "machine_code")))


@pytest.fixture
def no_gradients(request, monkeypatch):
    """Of tests in which no chain on an emulated model moves: its gradient takes most of the time to compile it."""
    if not _runs_as_users(request):
        monkeypatch.setattr(chains, "density_and_gradient", without_gradient)


@pytest.fixture
def give_draws(monkeypatch):
    """Lets chains on emulated models have normal draws with a center (d,), without the time that NUTS takes."""
    return lambda center, sd: monkeypatch.setattr(chains.Chains, "draw", normal_draws(center, sd))
