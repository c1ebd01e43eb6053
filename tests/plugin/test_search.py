from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.emulation import Round
from pymc_kernel.plugin.emulation.search import Search


def search_with(rounds, tolerance):
    """A search that has measured no more than these rounds: distance, sd of the log ratio, R-hat."""
    search = Search.__new__(Search)
    search.unknown, search.estimated, search.tolerance = SimpleNamespace(), [], tolerance
    search.noise_share, search.noise_sd = 0.0, 0.0
    search.rounds = [Round(10 * i, d, sd, 1.0, d, rhat, 0.0) for i, (d, sd, rhat) in enumerate(rounds)]
    return search


@pytest.mark.parametrize(
    ("rounds", "is_divided"),
    [
        ([(0.01, 0.02, 9.0)] * 3, True),
        ([(0.01, 0.02, 9.0)] * 2, False),
        ([(0.01, 0.02, 9.0)] * 2 + [(0.01, 0.02, 1.01)], False),
        # One chain of ten is where the true density is a hundred nats lower.
        ([(0.1, 13.0, 7.0), (0.1, 11.0, 10.0), (0.11, 123.0, 7.0)], False),
        ([(0.3, 0.8, 9.0)] * 3, False),
    ],
)
def test_chains_are_divided_where_all_is_learned_in_each_of_them(rounds, is_divided):
    assert search_with(rounds, tolerance=0.2).is_divided is is_divided


def test_single_precision_is_refused_by_name():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        rate = pm.LogNormal("rate")
        pm.Normal("y", wrap_py([pt.fscalar], [pt.fscalar])(np.exp)(rate), observed=0.0)
        with pytest.raises(ValueError, match="rate_log__ have single precision"):
            pk.emulate(model, progressbar=False)
