"""The README's code runs as written, and what it says is right."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.reference.hospitals import posterior_means

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:.*of 5000 simulations:UserWarning")  # its simulator fails now and then
def test_the_example_runs_and_agrees_with_quadrature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.S):
        exec(compile(block, "README.md", "exec"), names)
    posterior = names["idata"]["posterior"]
    level, spread = posterior_means(names["cured"])
    # Standard deviations of 0.4 and 0.35 and an effective size of at least 300.
    assert float(posterior["level"].mean()) == pytest.approx(level, abs=4 * 0.4 / 300**0.5)
    assert float(posterior["spread"].mean()) == pytest.approx(spread, abs=4 * 0.35 / 300**0.5)
    # Exponential law of the squared distance with mean 50, and noise that is small beside it.
    assert names["ring"]["smc_stats"]["log_evidence"].values == pytest.approx(-math.log(50) - 9 / 50, abs=0.2)
    # By the forward algorithm on a grid of rates the posterior has mean 1.256 and standard deviation 0.199.
    rate = names["outbreaks"]["posterior"]["rate"]
    assert float(rate.mean()) == pytest.approx(1.256, abs=0.1)
    assert float(rate.std()) == pytest.approx(0.199, rel=0.35)
    # Twenty waiting times with mean 1/2: the log-normal prior times rate^20 exp(-10 rate).
    grid = np.linspace(0.05, 8.0, 4000)
    density = grid**19 * np.exp(-10.0 * grid - 0.5 * np.log(grid) ** 2)
    exact = (grid * density).sum() / density.sum()
    assert float(names["waiting"]["posterior"]["rate"].mean()) == pytest.approx(exact, rel=0.04)
    assert names["sims"]["simulation_stats"].attrs["raised"] == pytest.approx(1000, abs=130)
    table = names["pk"].summary(names["fit"], model=names["model"], round_to="none")
    assert table["ess_bulk"].min() > 1500
    assert table["ksd"].idxmax() == "tau"
    assert table.attrs["ksd_p"] < 0.01


def test_paths_exist():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
