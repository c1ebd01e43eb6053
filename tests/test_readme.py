"""The README is short, its code runs as written, and what it says is right."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

from benchmarks import harness
from docs.page_examples import DOCS, PAGES, README, examples_of

ROOT = harness.ROOT
TEXT = README.read_text()
PROSE = re.sub(r"```.*?```", "", TEXT, flags=re.S)
EXAMPLES = examples_of(README)
LINKS = re.findall(r"\]\(([^)]+)\)", re.sub(r"\s+", " ", TEXT))


def run(word, tmp_path, monkeypatch):
    """Run the one example that says ``word``, in an empty folder, and return its names."""
    monkeypatch.chdir(tmp_path)
    (block,) = [e for e in EXAMPLES if word in e]
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def closed_form(names):
    """Return the model of README's first example with the formula that solves its equations."""
    hours, dose = names["hours"], names["dose"]
    with pm.Model() as model:
        typical = pm.Normal("typical", [0.5, -2.5, -0.7], 0.5, shape=3)
        spread = pm.HalfNormal("spread", 0.5, shape=3)
        own = pt.exp(typical + spread * pm.Normal("offset", shape=(6, 3)))
        absorption, loss, volume = own[:, [0]], own[:, [1]], own[:, [2]]
        share = absorption / (absorption - loss) * (pt.exp(-loss * hours) - pt.exp(-absorption * hours))
        noise = pm.HalfNormal("noise", 1.0)
        pm.Normal("level", dose[:, None] / volume * share, noise, observed=names["level"])
    return model


# While NUTS tunes, a trajectory may run away.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.slow
def test_a_solver_in_a_hierarchy_agrees_with_its_closed_form(tmp_path, monkeypatch):
    names = run("share_in_blood(", tmp_path, monkeypatch)
    assert names["emulated"].emulation.num_evaluations <= 40
    assert names["emulated"].emulation.distance < 0.05
    with closed_form(names):
        exact = pm.sample(chains=4, target_accept=0.9, random_seed=2, progressbar=False)["posterior"]
    for name in ("typical", "spread", "noise"):
        here, there = names["idata"]["posterior"][name].values, exact[name].values
        spread = there.std(axis=(0, 1))
        # Effective sizes of a thousand: Monte Carlo errors of .04 of the difference.
        np.testing.assert_allclose(here.mean(axis=(0, 1)), there.mean(axis=(0, 1)), atol=0.17 * spread.min())
        np.testing.assert_allclose(here.std(axis=(0, 1)), spread, rtol=0.15)


def posterior_means(cured, patients=20):
    """Return those of level and spread by quadrature: Gauss-Hermite in the latent log odds, a grid outside."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    levels, spreads = np.linspace(-3, 5, 81), np.linspace(0.01, 5, 101)
    chances = expit(levels[:, None, None] + spreads[:, None] * nodes)
    log_posterior = norm.logpdf(levels, 0, 2)[:, None] + norm.logpdf(spreads)
    for number in cured:
        log_posterior = log_posterior + np.log(binom.pmf(number, patients, chances) @ weights)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    return posterior.sum(axis=1) @ levels, posterior.sum(axis=0) @ spreads


@pytest.mark.slow
def test_noisy_likelihood_agrees_with_quadrature(tmp_path, monkeypatch):
    names = run("EstimatedLikelihood(", tmp_path, monkeypatch)
    posterior = names["idata"]["posterior"]
    level, spread = posterior_means(names["cured"])
    # Standard deviations of 0.4 and 0.35 and an effective size of at least 300.
    assert float(posterior["level"].mean()) == pytest.approx(level, abs=4 * 0.4 / 300**0.5)
    assert float(posterior["spread"].mean()) == pytest.approx(spread, abs=4 * 0.35 / 300**0.5)


@pytest.mark.slow
def test_the_check_of_a_fit_finds_what_is_wrong(tmp_path, monkeypatch):
    names = run("ksd_test(", tmp_path, monkeypatch)
    table = names["pk"].summary(names["fit"], model=names["model"], round_to="none")
    assert table["ess_bulk"].min() > 1500
    # By NUTS the mean of mu is 4.4 (ADVI: 3.5, a quarter of a standard deviation off), and the lower tail of
    # log(tau) is long.
    assert set(table["ksd_share"].nlargest(2).index) == {"mu", "tau"}
    assert table.attrs["ksd_p"] < 0.01


@pytest.mark.parametrize(("output", "first"), [("checks", "  ksd"), ("emulate-2", " +mean")])
def test_printed_lines_are_those_of_the_page(output, first):
    (printed,) = re.findall(rf"```\n({first} .*?)```", TEXT, flags=re.S)
    kept = (DOCS / "methods" / "output" / f"{output}.txt").read_text().splitlines()
    assert set(printed.splitlines()) <= {*kept, "..."}


@pytest.mark.slow
def test_a_simulator_is_learned_as_by_many_more_simulations(tmp_path, monkeypatch):
    idata = run("sample_likelihood_free(", tmp_path, monkeypatch)["till"]
    # Kernel Bayes' rule with 10,000 simulations and 800 of this method: 1.0 and .755, with spreads of .10 and .075.
    gap, service = (idata["posterior"][name].values for name in ("gap", "service"))
    assert (gap.mean(), gap.std()) == (pytest.approx(1.0, abs=0.05), pytest.approx(0.105, rel=0.3))
    assert (service.mean(), service.std()) == (pytest.approx(0.755, abs=0.03), pytest.approx(0.075, rel=0.3))
    assert float(idata["sample_stats"]["learning_error"].max()) < 0.3


def test_examples_are_run_above_commands_exist_and_it_is_one_page():
    """The pages' own test leaves out what is run here."""
    on_pages = {example for page in PAGES for example in examples_of(page)}
    assert len(EXAMPLES) == 4
    assert set(EXAMPLES) <= on_pages
    assert examples_of(DOCS / "index.rst") == EXAMPLES[:1]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"make ([a-z-]+)", TEXT)
    assert "demo" in targets
    assert all(f"\n{target}:" in makefile for target in targets)
    words = [word for word in PROSE.split() if re.search(r"\w", word)]
    assert len(words) <= 900


def anchor_of(heading):
    """Return the name that GitHub gives to a heading: lower case, no signs, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section_of(path, anchor):
    """Return the text of a file below the heading with this anchor, to the next heading."""
    sections = re.split(r"^#+ (.+)\n", path.read_text(), flags=re.M)
    return dict(zip(map(anchor_of, sections[1::2]), sections[2::2], strict=True))[anchor]


@pytest.mark.parametrize("link", sorted({link for link in LINKS if ":" not in link}))
def test_links_lead_somewhere(link):
    path, _, anchor = link.partition("#")
    assert (ROOT / path).exists()
    assert not anchor or section_of(ROOT / path, anchor)


HEADLINES = re.findall(r"^- (.+?\(\[table\].+?)(?=\n- |\n\n)", TEXT, flags=re.S | re.M)


def numbers_in(text):
    return [number.replace(",", "") for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.parametrize("line", HEADLINES)
def test_headline_numbers_are_those_of_their_table(line):
    said, link = re.sub(r"\s+", " ", line).split("([table](")
    command = re.search(r"`python -m ([\w.]+)`", link)[1]
    assert (ROOT / (command.replace(".", "/") + ".py")).exists()
    path, _, anchor = link.split(")")[0].partition("#")
    assert anchor.endswith(anchor_of(f"python -m {command}"))
    section = section_of(ROOT / path, anchor)
    measured = np.array([float(number) for number in numbers_in(section)])
    for number in numbers_in(said):
        if int(float(number)) in (1000, 10000):  # a unit, or the size of a run, written in the table as it is here
            assert number in section
            continue
        half_a_digit = 0.5 * 10.0 ** -len(number.partition(".")[2])
        assert np.abs(measured - float(number)).min() <= half_a_digit, number


def test_headline_of_simulators_and_of_the_picture():
    assert len(HEADLINES) == 5
    rows = harness.rows_between(harness.RESULTS, "community")
    ours = {row[:2]: float(row[3].split()[0]) for row in map(tuple, rows) if row[2] == "pk.sample_likelihood_free"}
    best = {(row[0], row[1]): float(row[-1]) for row in rows}

    def closer(our_size, their_size, by=0.0):
        both = [(ours[task, our_size], best[task, size]) for task, size in best if size == their_size]
        return sum(own < other - by for own, other in both), len(both)

    assert closer("1000", "1000", by=0.01) == (9, 10)
    assert closer("10000", "10000") == (8, 8)
    assert closer("10000", "10000", by=0.012) == (7, 8)  # two standard errors of the eighth
    assert closer("1000", "10000") == (7, 8)
    assert "best published network (C2ST) on nine with 1,000 simulations (not" in re.sub(r"\s+", " ", TEXT)
    ten_thousand = "on all eight with 10,000 (one narrowly); on seven, its 1,000 beat the networks' 10,000"
    assert ten_thousand in re.sub(r"\s+", " ", TEXT)
    # Of what is written into the picture, which is made anew by hand: the numbers of its titles are in the text.
    from benchmarks import same_budget

    assert same_budget.effective_draws("pk.KernelHMC") == "733"
    assert {same_budget.effective_draws(step) for step in same_budget.STEPS} == {"733", "0.3"}
