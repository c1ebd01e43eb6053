"""The benchmark of checks by a surrogate, and its bar: the same verdict as by gradients in 95 % of what is judged."""

import pytest

from benchmarks import harness, surrogate_checks, zoo_draws

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


def test_a_row_and_the_table(tmp_path, monkeypatch, quick_models):
    kept = harness.Rows(tmp_path / "rows.jsonl", surrogate_checks.ROWS.key)
    monkeypatch.setattr(surrogate_checks, "_NUM_DRAWS", 300)
    monkeypatch.setattr(zoo_draws, "_NUM_WRONG", 300)
    for kind in ("exact", "cut"):
        row = surrogate_checks.run("counts", kind, 2)
        kept.keep(row)
        assert row["learned_verdict"] == row["verdict"] == ("misfit" if kind == "cut" else "no misfit detected")
        assert abs(row["p"] - row["learned_p"]) < 0.05
        assert row["score_error"] < 0.05
    rows = list(kept.kept().values())
    rows.append(rows[0] | {"seed": 3, "learned_verdict": "misfit"})
    rows.append(rows[0] | {"seed": 4, "learned_verdict": surrogate_checks.UNJUDGED})
    assert surrogate_checks.agreement(rows) == (3, 2)
    text = surrogate_checks.table(rows)
    assert "4 checks, 3 of them judged by the surrogate; the same verdict as by gradients in 2 of these (66.7%)" in text
    assert "| counts | 4 | 1 | 3 | 2 |" in text


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
