"""Weights of particles on every kind of array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import smc
from tests.fuzz.contract import kept
from tests.fuzz.strategies import arrays, seeds, sizes


def vectors():
    return sizes().flatmap(lambda n: arrays((n,)))


@given(vectors())
def test_means_and_shares(logs):
    total = kept(lambda: smc.log_mean_exp(logs), ("log_values",))
    if total is not None:
        logs = np.asarray(logs, dtype=float)
        rounding = 1e-9 * abs(logs.max())
        assert logs.max() - np.log(logs.size) - rounding <= total <= logs.max() + rounding
    share = kept(lambda: smc.effective_share(logs), ("log_weights",))
    assert share is None or share == 0.0 or 1.0 / np.size(logs) - 1e-9 <= share <= 1.0 + 1e-9
    weights = kept(lambda: smc.normalized(logs), ("log_weights",))
    assert weights is None or abs(weights.sum() - 1.0) < 1e-9


@given(logs=vectors(), where=st.sampled_from([0.0, 0.5, 1.0, -1.0, np.nan]), wanted=st.floats())
def test_temperatures(logs, where, wanted):
    names = ("log_likelihood", "inverse_temperature", "wanted_share")
    found = kept(lambda: smc.next_temperature(logs, where, wanted), names)
    assert found is None or where <= found <= 1.0


@given(rng=seeds(), weights=vectors(), size=st.integers(-1, 9))
def test_resampling(rng, weights, size):
    found = kept(lambda: smc.resample(rng, weights, size), ("weights", "size"))
    if found is not None:
        assert len(found) == size
        assert (np.diff(found) >= 0).all()
        assert (np.asarray(weights, dtype=float)[found] > 0).all()
