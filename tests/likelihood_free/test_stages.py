import numpy as np
import pytest

from pymc_kernel.likelihood_free.learned_likelihood.features import make_features
from pymc_kernel.likelihood_free.learned_likelihood.stages import Design, fit_coefficients, fit_log_sd


@pytest.fixture
def design(rng):
    z = rng.standard_normal((2000, 1))
    return Design(make_features(z, rng, 6, 0), z)


def test_a_log_spread_is_learned_in_its_own_units(design, rng):
    """The steps that follow would mend a factor, so that no density shows it."""
    true = 0.3 + 0.5 * design.values[:, 1]  # the linear feature
    residuals = np.exp(true) * rng.standard_normal(len(true))
    weights, _ = fit_log_sd(design, residuals, np.ones(len(true)))
    assert np.abs(design.values @ weights - true).mean() < 0.05


def test_outliers_have_no_part_in_coefficients(design, rng):
    scaled = rng.standard_normal((2000, 2))
    scaled[:, 1] = 0.8 * scaled[:, 0] + 0.6 * scaled[:, 1]
    scaled[:20] = [100.0, 0.0]
    coefficients, _ = fit_coefficients(design, scaled, np.ones(2000))
    at = design.values[20:, : len(coefficients)] @ coefficients[:, 0]
    assert at.mean() == pytest.approx(0.8, abs=0.1)
