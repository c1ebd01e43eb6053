"""The examples of the documentation's pages run as written, and what they find is right."""

import doctest
import math
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest

import pymc_kernel as pk
from docs.page_examples import PAGES, README, examples_of

# Pages whose examples take three seconds at most; those of all others are run among the long tests.
QUICK = ("extending", "density", "surrogates")
# What README has as well is run, and checked, by the tests of README.
ALREADY_RUN = set(examples_of(README))
RUN_HERE = [page for page in PAGES if set(examples_of(page)) - ALREADY_RUN]


def drug_is_learned(names):
    assert names["drug"]["sample_stats"]["distance"] < 0.05


def evidence_of_the_ring(names):
    # Exponential distribution of the squared distance with mean 50, and noise that is small beside it.
    evidence = names["ring"]["smc_stats"]["log_evidence"].values
    assert evidence == pytest.approx(-math.log(50) - 9 / 50, abs=0.2)


def outbreak_agrees_with_the_forward_algorithm(names):
    # By the forward algorithm on a grid of rates the posterior has mean 1.256 and standard deviation 0.199.
    rate = names["outbreaks"]["posterior"]["rate"]
    assert float(rate.mean()) == pytest.approx(1.256, abs=0.1)
    assert float(rate.std()) == pytest.approx(0.199, rel=0.35)


def waiting_times_agree_with_a_grid(names):
    # Twenty waiting times with mean 1/2: the log-normal prior times rate^20 exp(-10 rate).
    grid = np.linspace(0.05, 8.0, 4000)
    density = grid**19 * np.exp(-10.0 * grid - 0.5 * np.log(grid) ** 2)
    exact = (grid * density).sum() / density.sum()
    assert float(names["waiting"]["posterior"]["rate"].mean()) == pytest.approx(exact, rel=0.04)
    assert names["sims"]["simulation_stats"].attrs["raised"] == pytest.approx(1000, abs=130)
    assert names["both"]["prior_predictive"]["numbers"].shape == (1, 100, 6, 2)


# What some pages find is checked here, other pages only have to run.
CHECKS = {
    "sample_surrogate": drug_is_learned,
    "smc": evidence_of_the_ring,
    "kernel_bayes_rule": outbreak_agrees_with_the_forward_algorithm,
    "simulate": waiting_times_agree_with_a_grid,
}


def test_each_check_has_its_page_and_every_function_and_class_an_example():
    stems = [page.stem for page in RUN_HERE]
    assert all(stems.count(name) == 1 for name in (*CHECKS, *QUICK))
    modules = {name for name in pk.__all__ if type(getattr(pk, name)).__name__ == "module"}
    # What calls return, and abstract settings that another example shows.
    shown_elsewhere = {"Emulation", "LearnedFeatures", "ASMC"}
    assert set(pk.__all__) - modules - shown_elsewhere == set(EXAMPLES)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem) for p in RUN_HERE]
)
@pytest.mark.filterwarnings("ignore:.*of 5000 simulations:UserWarning")  # its simulator fails now and then
@pytest.mark.filterwarnings("ignore:overflow encountered in dot:RuntimeWarning")  # PyMC's NUTS while it tunes
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples_of(page):
        exec(compile(example, str(page), "exec"), names)
    assert names
    CHECKS.get(page.stem, bool)(names)


EXAMPLES = {
    name: found
    for name in pk.__all__
    if (text := getattr(pk, name).__doc__) and ">>>" in text
    for found in [doctest.DocTestParser().get_doctest(text, {}, name, None, 0)]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small examples may have few draws
        result = runner.run(EXAMPLES[name])
    plt.close("all")
    assert result.failed == 0
    assert result.attempted > 0
