"""The README's code runs as written, and what it says is right."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.reference.hospitals import posterior_means

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def run(word, tmp_path, monkeypatch):
    """Run the one example that says ``word``, in an empty folder, and return its names."""
    monkeypatch.chdir(tmp_path)
    (block,) = [e for e in EXAMPLES if word in e]
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_every_example_is_run_below():
    assert len(EXAMPLES) == 7


def test_noisy_likelihood_agrees_with_quadrature(tmp_path, monkeypatch):
    names = run("EstimatedLikelihood(", tmp_path, monkeypatch)
    posterior = names["idata"]["posterior"]
    level, spread = posterior_means(names["cured"])
    # Standard deviations of 0.4 and 0.35 and an effective size of at least 300.
    assert float(posterior["level"].mean()) == pytest.approx(level, abs=4 * 0.4 / 300**0.5)
    assert float(posterior["spread"].mean()) == pytest.approx(spread, abs=4 * 0.35 / 300**0.5)


def test_the_check_of_a_fit_finds_what_is_wrong(tmp_path, monkeypatch):
    names = run("ksd_test(", tmp_path, monkeypatch)
    table = names["pk"].summary(names["fit"], model=names["model"], round_to="none")
    assert table["ess_bulk"].min() > 1500
    # By NUTS the mean of mu is 4.4 (ADVI: 3.5, a quarter of a standard deviation off), and the lower tail of
    # log(tau) is long.
    assert set(table["ksd_share"].nlargest(2).index) == {"mu", "tau"}
    assert table.attrs["ksd_p"] < 0.01


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_the_drug_agrees_with_a_grid(tmp_path, monkeypatch):
    names = run("sample_surrogate(", tmp_path, monkeypatch)
    # Runge and Kutta's method for all places of a grid on the log scale at once.
    axes = [np.linspace(-1.2, 0.6, 36), np.linspace(-0.2, 2.8, 40), np.linspace(-0.2, 4.4, 40)]
    log_absorbed, log_fastest, log_half = (a.ravel() for a in np.meshgrid(*axes, indexing="ij"))
    absorbed, fastest, half = np.exp(log_absorbed), np.exp(log_fastest), np.exp(log_half)

    def rate(time, level):
        return 10.0 * absorbed * np.exp(-absorbed * time) - fastest * level / (half + level)

    level, step, misfit = np.zeros(absorbed.size), 1.0 / 16.0, 0.0
    for i in range(288):
        time = step * i
        k1 = rate(time, level)
        k2 = rate(time + step / 2, level + step / 2 * k1)
        k3 = rate(time + step / 2, level + step / 2 * k2)
        k4 = rate(time + step, level + step * k3)
        level = np.maximum(level + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), 1e-12)
        for j in np.flatnonzero(names["hours"] == time + step):
            misfit = misfit + ((np.log(np.maximum(level, 1e-6)) - np.log(names["measured"][j])) / 0.15) ** 2
    log_density = -0.5 * (misfit + log_absorbed**2 + log_fastest**2 + log_half**2)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    posterior = names["drug"]["posterior"]
    for name, grid in (("absorbed", log_absorbed), ("fastest", log_fastest), ("half", log_half)):
        mean = weights @ grid
        spread = np.sqrt(weights @ (grid - mean) ** 2)
        draws = np.log(posterior[name].values)
        assert draws.mean() == pytest.approx(mean, abs=0.1 * spread)
        assert draws.std() == pytest.approx(spread, rel=0.1)


def test_evidence_of_the_ring(tmp_path, monkeypatch):
    # Exponential distribution of the squared distance with mean 50, and noise that is small beside it.
    evidence = run("sample_smc(", tmp_path, monkeypatch)["ring"]["smc_stats"]["log_evidence"].values
    assert evidence == pytest.approx(-math.log(50) - 9 / 50, abs=0.2)


def test_outbreak_agrees_with_the_forward_algorithm(tmp_path, monkeypatch):
    # By the forward algorithm on a grid of rates the posterior has mean 1.256 and standard deviation 0.199.
    rate = run("def outbreak(", tmp_path, monkeypatch)["outbreaks"]["posterior"]["rate"]
    assert float(rate.mean()) == pytest.approx(1.256, abs=0.1)
    assert float(rate.std()) == pytest.approx(0.199, rel=0.35)


def test_queue_agrees_with_many_more_simulations(tmp_path, monkeypatch):
    # Kernel Bayes' rule with 10,000 simulations and 800 of this method: 1.0 and .755, with spreads of .10 and .075.
    posterior = run("def queue(", tmp_path, monkeypatch)["till"]["posterior"]
    assert float(posterior["gap"].mean()) == pytest.approx(1.0, abs=0.05)
    assert float(posterior["service"].mean()) == pytest.approx(0.755, abs=0.03)
    assert float(posterior["gap"].std()) == pytest.approx(0.105, rel=0.3)
    assert float(posterior["service"].std()) == pytest.approx(0.075, rel=0.3)


@pytest.mark.filterwarnings("ignore:.*of 5000 simulations:UserWarning")  # its simulator fails now and then
def test_waiting_times_agree_with_a_grid(tmp_path, monkeypatch):
    names = run("KernelABC(", tmp_path, monkeypatch)
    # Twenty waiting times with mean 1/2: the log-normal prior times rate^20 exp(-10 rate).
    grid = np.linspace(0.05, 8.0, 4000)
    density = grid**19 * np.exp(-10.0 * grid - 0.5 * np.log(grid) ** 2)
    exact = (grid * density).sum() / density.sum()
    assert float(names["waiting"]["posterior"]["rate"].mean()) == pytest.approx(exact, rel=0.04)
    assert names["sims"]["simulation_stats"].attrs["raised"] == pytest.approx(1000, abs=130)


def test_paths_exist():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
