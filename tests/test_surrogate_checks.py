"""The benchmark of checks by a surrogate, and its bar: the same verdict as by gradients in 95 % of what is judged."""

import pytest

from benchmarks import surrogate_checks

_TEN = (
    "counts",
    "simplex",
    "correlations",
    "cutpoints",
    "two_modes",
    "constant_likelihood",
    "scales",
    "arK",
    "earnings",
    "kidiq",
)


@pytest.mark.slow
def test_verdicts_agree_with_those_by_gradients(quick_models):
    rows = [surrogate_checks.run(name, kind, 7) for name in _TEN for kind in surrogate_checks.KINDS]
    judged, same = surrogate_checks.agreement(rows)
    assert judged >= 0.9 * len(rows)
    assert same >= 0.95 * judged
    # A funnel is what a surrogate cannot learn: it must say so, or agree.
    funnels = [surrogate_checks.run(name, "exact", 7) for name in ("funnel", "eight_schools", "heavy_tails")]
    judged, same = surrogate_checks.agreement(funnels)
    assert same == judged
