"""What tests of the plugin are made of: settings of runs, black boxes, and data around them."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

QUIET = {"progressbar": False, "random_seed": 1}
#: Of two chains of which nothing is checked.
PLAIN = QUIET | {"chains": 2, "cores": 1, "compute_convergence_checks": False}
TIMES = np.array([0.5, 1.0, 2.0, 4.0])
CURVE = np.array([0.7, 0.45, 0.3, 0.0])
KINDS = {"s": pt.dscalar, "v": pt.dvector, "m": pt.dmatrix}


def black_box(function, inputs="s", output="v"):
    """The function without its gradient: letters say what is a scalar, a vector or a matrix."""
    return wrap_py([KINDS[letter] for letter in inputs], [KINDS[output]])(function)


def data_around(mean, observed, sd=1.0):
    """Normal data around what ``mean()`` returns within the model."""
    with pm.Model() as model:
        pm.Normal("y", mean(), sd, observed=observed)
    return model


def curve_model(curve, sd=1.0, observed=CURVE):
    """A curve at ``TIMES``, with one parameter."""
    return data_around(lambda: curve(pm.LogNormal("rate", 0.0, sd)), observed, 0.1)


def check_moments(draws, mean, sd, of_mean, of_sd):
    """Of draws the mean is right up to a share of the standard deviation, and this up to a share of its own."""
    found = float(draws.mean()), float(draws.std())
    assert found == (pytest.approx(mean, abs=of_mean * sd), pytest.approx(sd, rel=of_sd))
