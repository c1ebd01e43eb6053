"""The study of ``make demo``: its estimates are unbiased, its chains agree, its pictures are written."""

import itertools

import numpy as np
import pytensor
import pytest
from scipy.special import expit, logsumexp

from case_studies import glass


def test_the_estimate_is_unbiased():
    """Against Gauss and Hermite's quadrature in the three latent values of a small data set."""
    rng = np.random.default_rng(1)
    inputs, labels = rng.normal(size=(3, 2)), np.array([1.0, -1.0, 1.0])
    theta = np.array([0.3, 1.5])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    standard = np.array(list(itertools.product(nodes, repeat=3)))
    log_weights = np.log(weights / weights.sum())
    latent = standard @ np.linalg.cholesky(glass.covariance(theta, inputs)).T
    log_likelihood = np.log(expit(labels * latent)).sum(axis=1)
    exact = logsumexp(log_likelihood + np.array(list(itertools.product(log_weights, repeat=3))).sum(axis=1))
    estimate = glass.make_log_estimate(inputs, num_samples=2)
    ratios = np.exp([estimate(rng, theta, labels) - exact for _ in range(1500)])
    # Their mean has a standard error of .001.
    assert 0.01 < ratios.std() < 0.1
    assert ratios.mean() == pytest.approx(1.0, abs=4.0 * ratios.std() / np.sqrt(ratios.size))


@pytest.mark.long
def test_a_short_run_has_a_table_and_pictures(tmp_path, capsys):
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        hamiltonian, walk = glass.main(draws=20, tune=20, chains=2, cores=1, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"glass_scales.png", "glass_traces.png", "glass_pair.png"}
    told = capsys.readouterr().out
    assert all(name in told for name in glass.NAMES.values())
    assert "1 of 3" in told
    first = glass.table(hamiltonian, walk).index[0]
    assert f"Found: {first} matters most." in told
    assert "do not agree yet" in told  # after twenty draws
    assert len(glass.table(hamiltonian, walk)) == 9


@pytest.mark.slow
def test_the_demo_converges(tmp_path, caplog):
    hamiltonian, walk = glass.main(folder=tmp_path)
    table = glass.table(hamiltonian, walk)
    assert table["R-hat, KernelHMC"].max() < 1.01
    assert table["effective draws, KernelHMC"].min() > 800
    assert table.index[0] == "magnesium"
    assert not caplog.records or all(record.levelname == "INFO" for record in caplog.records)
