"""Density estimates on every kind of array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel.density import STRUCTURES, BayesianKDE
from tests.fuzz.contract import kept
from tests.fuzz.strategies import arrays, dimensions, seeds, sizes

pytestmark = pytest.mark.slow  # ten examples take as long as the compiling of what they run
NAMES = ("data", "points", "columns", "x", "size", "probability")


@pytest.mark.parametrize("structure", [*STRUCTURES, "auto"])
@given(data=st.data(), d=dimensions(), rng=seeds())
def test_fits(structure, data, d, rng):
    x, more, places = (data.draw(arrays((data.draw(sizes(0, most)), d))) for most in (9, 3, 4))
    fit = kept(lambda: BayesianKDE(structure, max_sweeps=20).fit(x), NAMES)
    if fit is None:
        return
    assert np.isfinite(fit.log_evidence)
    for averaged in (False, True):
        kept(lambda a=averaged: fit.log_density(places, averaged=a), NAMES)
    kept(lambda: fit.interval(places, 0.9, size=5, rng=rng), NAMES)
    assert kept(lambda: fit.sample(3, rng), NAMES) is not None
    kept(lambda: fit.updated(more).log_density(places), NAMES)
