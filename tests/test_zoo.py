"""The zoo's posteriors are what they claim to be, its judge sees wrong answers, and some of its rows as tests."""

import json
import logging
import warnings

import numpy as np
import pytest
import xarray as xr

from benchmarks import surrogate_checks, zoo, zoo_checks, zoo_draws
from benchmarks.posteriors import ZOO
from benchmarks.posteriors.draws import EXACT_DRAWS
from benchmarks.posteriors.judge import judge, largest_rhat, split_names, summarized

TRUTH = {"x": np.array([2.0, 3.0, 2.0 - 1.6449 * 3.0, 2.0, 2.0 + 1.6449 * 3.0])}


def verdict(draws, said=(), truth=TRUTH, chains_are=""):
    return judge(summarized({"x": draws}, truth, chains_are), truth, largest_rhat({"x": draws}), said)


ONE_FAR = np.array([[0.0], [0.0], [0.0], [130.0]])
JUDGED = {  # changes of exact draws around the true mean, in units of the true spread
    "exact": ("right", lambda z, rng: z),
    "shifted by half": ("silent", lambda z, rng: z + 0.5),
    "half as wide": ("silent", lambda z, rng: 0.5 * z),
    "too wide": ("silent", lambda z, rng: 1.3 * z),
    "upper tail missing": ("silent", lambda z, rng: np.minimum(z, 1.0)),
    "lower tail missing": ("silent", lambda z, rng: np.maximum(z, -1.0)),
    # The Monte Carlo error, taken from the spread of chains, would excuse what is as large.
    "few": ("right", lambda z, rng: rng.standard_normal((4, 25))),
    "few and far": ("silent", lambda z, rng: rng.standard_normal((4, 25)) + 2.0),
    "half of the chains apart": ("said", lambda z, rng: z + 0.01 * ONE_FAR),
    "one chain far off": ("said", lambda z, rng: z + ONE_FAR),
    "chains that stand still": ("said", lambda z, rng: 0.0 * z),
    "not a number": ("said", lambda z, rng: np.where(z > 1.0, np.nan, z)),
}


@pytest.mark.parametrize("name", JUDGED)
def test_outcomes_of_draws(name, rng):
    outcome, change = JUDGED[name]
    draws = 2.0 + 3.0 * change(rng.standard_normal((4, 1000)), rng)
    assert verdict(draws).outcome == outcome
    # What is wrong and said is no silent error; what is right stays right.
    assert verdict(draws, ["a warning"]).outcome == {"silent": "said"}.get(outcome, outcome)


def test_quantiles_are_compared_where_mean_and_spread_are_right_and_without_moments(rng):
    assert verdict(2.0 + 3.0 * (rng.standard_exponential((4, 4000)) - 1.0)).worst == "5 % of x"
    truth = {"x": np.array([np.nan, np.nan, -6.3138, 0.0, 6.3138])}
    cauchy = rng.standard_cauchy((4, 1000))
    assert verdict(cauchy, truth=truth).outcome == "right"
    assert verdict(0.5 * cauchy, truth=truth).outcome == "silent"


def test_repeated_draws_populations_and_replicates_are_judged_by_what_they_are_worth(rng):
    """Forty of 4,000 resampled: their mean is off by half a standard deviation, two errors of forty draws."""
    few = rng.normal(2.0, 3.0, 40)
    few += 2.0 + 1.5 - few.mean()
    found = rng.choice(few, (4, 1000))
    assert verdict(found).outcome == "right"
    assert verdict(found + 3.0).outcome == "silent"
    # Populations are each off by a shift that their draws do not show; replicates share an error as large as that.
    shifted = rng.normal(2.0, 3.0, (4, 4000)) + 0.2 * 3.0 * np.array([[0.5], [1.5], [-0.5], [1.5]])
    assert verdict(shifted).excess > 1.0
    assert verdict(shifted, chains_are="populations").outcome == "right"
    shifted = rng.normal(2.0, 3.0, (4, 4000)) + 3.0 * np.array([[0.3], [0.4], [0.5], [0.4]])
    assert verdict(shifted, chains_are="populations").outcome == "silent"
    assert verdict(shifted, chains_are="replicates").excess < verdict(shifted, chains_are="populations").excess / 2.0


def test_what_counts_as_said_is_about_the_answer_and_an_error_is_said(monkeypatch, rng):
    """Neither the words of libraries nor PyMC's on every short run; a sampler that always warns shows in the table."""

    def sampler(model, seed):
        warnings.warn("the posterior is extrapolated", stacklevel=2)
        warnings.warn("overflow", RuntimeWarning, stacklevel=2)
        warnings.warn_explicit("no BLAS was found", UserWarning, "/lib/pytensor/link/c/cmodule.py", 1)
        logger = logging.getLogger("pymc.stats.convergence")
        logger.warning("The rhat statistic is larger than 1.01 for some parameters.")
        logger.warning("a chain has rejected 300 proposals in a row")
        names = ZOO["constant_likelihood"].truth()
        return {"posterior": xr.Dataset({n: (("chain", "draw"), rng.standard_normal((4, 100))) for n in names})}

    monkeypatch.setitem(zoo.SAMPLERS, "always warns", (sampler, False))
    row = zoo.run("constant_likelihood", "always warns", 1)
    assert row["said"] == ["the posterior is extrapolated", "a chain has rejected 300 proposals in a row"]
    assert json.loads(json.dumps(row)) == row
    assert zoo.verdict_of(row)[0] == "said"
    assert zoo.table([row]).startswith("1 outcomes: 0 silent, 1 said, 0 right")

    def refuses(model, seed):
        raise ValueError("take more simulations")

    monkeypatch.setitem(zoo.SAMPLERS, "refuses", (refuses, False))
    found = zoo.verdict_of(zoo.run("counts", "refuses", 1))
    assert (found[0], found[3]) == ("said", ("raised ValueError: take more simulations",))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "sampler"), [
    ("counts", "KernelHMC"), ("walls", "KAMH"), ("simplex", "sample_smc, ASMC"), ("correlations", "sample_khmc"),
    ("cutpoints", "KAMH"), ("two_modes", "sample_smc, KASMC"), ("funnel", "sample_smc, KernelHMCSMC"),
    ("scales", "sample_pmc"), ("noisy", "AdaptiveMetropolis"), ("thirty", "KernelHMC"), ("eight_schools", "KernelHMC"),
    ("hudson_lynx_hare", "sample_khmc"), ("hmm_example", "AdaptiveMetropolis"), ("one_comp_mm_elim_abs", "KAMH"),
])  # fmt: skip
def test_no_row_is_silent(model, sampler):
    outcome, worst, error, _ = zoo.verdict_of(zoo.run(model, sampler, 3))
    assert outcome != "silent", f"{worst} is off by {error:.2f} standard deviations"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT_DRAWS)
def test_exact_draws_have_the_true_quantiles(name):
    """Shares below the true ones; of posteriordb's, which are the quantiles of 10,000 draws, with their own error."""
    n = 4000
    draws = EXACT_DRAWS[name](np.random.default_rng(3), n)
    if name == "correlations":
        r = draws["factor"] @ np.swapaxes(draws["factor"], 1, 2)
        draws = {"r": np.stack([r[:, 1, 0], r[:, 2, 0], r[:, 2, 1]], axis=1)}
    if name == "eight_schools":
        draws["theta"] = draws["mu"][:, None] + draws["tau"][:, None] * draws["theta_trans"]
    found = {}
    for variable, values in draws.items():
        found |= {k: v[0] for k, v in split_names(variable, values[None]).items()}
    for quantity, exact in ZOO[name].truth().items():
        for p, q in zip((0.05, 0.5, 0.95), exact[2:], strict=True):
            error = np.sqrt(p * (1 - p) * (1 / n + 1 / ZOO[name].num_reference_draws))
            assert abs((found[quantity] <= q).mean() - p) < 4.5 * error, quantity


@pytest.mark.parametrize(("outcome", "changes"), [
    ("right", {"kind": "exact, 20 x 200", "p": [0.01] * 5 + [0.5] * 15}),
    ("false alarm", {"kind": "exact, 20 x 200", "p": [0.01] * 7 + [0.5] * 13}),
    ("right", {"kind": "NUTS", "p": [0.01] * 7 + [0.5] * 13, "rhat": 1.2}),
    ("right", {"kind": "ADVI", "p": [0.01], "off": 0.9}),
    ("right", {"kind": "ADVI", "p": [0.2], "off": 0.2}),
    ("silent", {"kind": "ADVI", "p": [0.2], "off": 0.9}),
    ("said", {"kind": "ADVI", "p": [0.2], "off": 0.9, "said": ["separated modes of x"]}),
    ("said", {"kind": "ADVI", "raised": "ValueError: too few draws"}),
])  # fmt: skip
def test_verdicts_on_the_checks(outcome, changes):
    row = {"model": "walls", "seed": 1, "rhat": 1.0, "said": [], "worst": "mean of p"}
    assert zoo_checks.verdict_of(row | changes)[0] == outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["walls", "simplex", "funnel", "heavy_tails", "one_observation", "scales", "eight_schools", "mesquite"]
)
@pytest.mark.parametrize("kind", ["exact, 20 x 200", "exact, 10 x 1000", "cut", "narrow", "shifted", "Laplace"])
def test_no_row_of_the_checks_is_silent(name, kind):
    row = zoo_checks.run(name, kind, 3)
    assert json.loads(json.dumps(row)) == row
    assert zoo_checks.verdict_of(row)[0] in ("right", "said")
    assert zoo_checks.table([row]).startswith("1 outcomes: 0 silent, 0 false alarm")


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo_draws.NO_SCORE)
def test_without_a_score_it_is_said(name):
    outcome, said = zoo_checks.verdict_of(zoo_checks.run(name, "narrow", 1))
    assert outcome == "said"
    assert "NoGradientError" in said[0]


@pytest.mark.slow
def test_verdicts_agree_with_those_by_gradients(quick_models):
    ten = [
        "counts", "simplex", "correlations", "cutpoints", "two_modes", "constant_likelihood", "scales", "arK",
        "earnings", "kidiq",
    ]  # fmt: skip
    rows = [surrogate_checks.run(name, kind, 7) for name in ten for kind in surrogate_checks.KINDS]
    judged, same = surrogate_checks.agreement(rows)
    assert judged >= 0.9 * len(rows)
    assert same >= 0.95 * judged
    # A funnel is what a surrogate cannot learn: it must say so, or agree.
    funnels = [surrogate_checks.run(name, "exact", 7) for name in ("funnel", "eight_schools", "heavy_tails")]
    judged, same = surrogate_checks.agreement(funnels)
    assert same == judged
