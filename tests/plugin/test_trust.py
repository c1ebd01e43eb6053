import numpy as np
import pytest
import xarray as xr

from pymc_kernel.embeddings.inputs import typicality
from pymc_kernel.plugin.simulation.trust import findings
from pymc_kernel.plugin.warn import findings_in, report_all


def test_typicality_of_what_the_model_simulates_is_uniform(rng):
    """Each point among all others: of two points one is the more typical, so that the mean is one half by symmetry."""
    summaries = rng.standard_normal((120, 2)) @ np.array([[1.0, 0.0], [0.9e3, 1e2]])
    shares = [typicality(np.delete(summaries, i, axis=0), summaries[i, None], rng)[0] for i in range(120)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1.0 / 12.0, rel=0.1)


def test_a_combination_that_never_occurs_is_far_though_its_neighbors_are_near(rng):
    line = rng.standard_normal((2000, 1)) + 0.02 * rng.standard_normal((2000, 2))
    assert typicality(line, np.array([[0.08, -0.08]]), rng)[0] == 0.0
    assert typicality(line, np.array([[0.08, 0.08]]), rng)[0] > 0.2


def test_every_finding_is_said_beyond_its_bound_alone():
    assert findings(0.02, 31.0, 0.19, ["", ""]) == []
    words = findings(0.004, 29.0, 0.21, ["", "more"])
    assert len(words) == 4
    for said, number in zip(words, ("only 0.4 %", "number of 29", "by 0.21 posterior", "more"), strict=True):
        assert number in said
    stats = xr.Dataset()
    with pytest.warns(UserWarning, match=r"should not be trusted: a; b\. Do this"):
        report_all(["a", "b"], "Do this.", stats)
    report_all([], "Do this.", stats)
    assert findings_in(stats) == ["this posterior should not be trusted: a; b. Do this."]
