"""Surrogates of a log density, and density estimates, on every kind of array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import kernels as K
from pymc_kernel import scores
from pymc_kernel.density import STRUCTURES, BayesianKDE
from tests.fuzz.strategies import all_kept, arrays, dimensions, kept, powers, seeds, sizes

NAMES = ("x", "weights", "length_scale", "points", "values", "basis", "regularization", "base")
FAMILIES = [K.Gaussian, K.RationalQuadratic, K.InverseMultiquadric]
ESTIMATORS = {
    "lite": scores.Lite,
    "lite, rkhs": lambda **settings: scores.Lite(penalty="rkhs", **settings),
    "finite": lambda **settings: scores.Finite(num_features=5, **settings),
    "full": scores.Full,
    "nystrom": lambda **settings: scores.Nystrom(num_basis=3, **settings),
}


@st.composite
def estimators(draw, make):
    kernel = draw(st.sampled_from(FAMILIES))(draw(st.one_of(st.just("median"), powers())))
    settings = {"kernel": kernel, "base": draw(st.sampled_from(["gaussian", "gaussian", "uniform"]))}
    return make(**settings, regularization=draw(st.sampled_from([1e-3, 1e-3, 1.0, 1e-150, 1e150])))


@st.composite
def samples(draw, most=5):
    """Points, weights or none, and places to look at."""
    n, d = draw(sizes(0, most)), draw(dimensions())
    weights = draw(st.one_of(st.none(), arrays((draw(st.sampled_from([n, n, n, 2])),)).map(np.abs)))
    return draw(arrays((n, d))), weights, draw(arrays((draw(sizes(1, 3)), d)))


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@given(data=st.data(), sample=samples(), rng=seeds())
def test_score_matching(make, data, sample, rng):
    estimator, (x, weights, places) = data.draw(estimators(make)), sample
    fit = kept(lambda: estimator.fit(x, weights, rng=rng), NAMES)
    if fit is not None:
        for at in (places, np.asarray(x, dtype=float)):
            all_kept(NAMES, lambda a=at: fit.log_density(a), lambda a=at: fit.score(a))


@given(data=st.data(), d=dimensions(), rng=seeds(), noisy=st.booleans())
def test_regression_on_values(data, d, rng, noisy):
    n = data.draw(sizes(0, 9))
    points, places = data.draw(arrays((n, d))), data.draw(arrays((2, d)))
    values = data.draw(arrays((data.draw(st.sampled_from([n, n, n, 2])),)))
    fit = kept(lambda: scores.Values(max_iterations=2).fit(points, values, rng, noisy=noisy), NAMES)
    if fit is not None:
        all_kept(NAMES, lambda: fit.log_density(places), lambda: fit.score(places))
        assert not np.isnan([fit.error, fit.noise_sd]).any()


@given(data=st.data(), sample=samples(9), rng=seeds())
def test_cross_validation(data, sample, rng):
    make = ESTIMATORS[data.draw(st.sampled_from(["lite", "finite", "nystrom"]))]
    x, weights, _ = sample
    names = (*NAMES, "num_folds", "regularizations", "length_scales")
    folds, estimator = data.draw(st.integers(0, 4)), data.draw(estimators(make))
    candidates = data.draw(st.sampled_from([None, [1.0], [1e-150, 1e150], [np.nan], []]))
    settings = {"num_folds": folds, "length_scales": candidates, "regularizations": (1e-3, 1.0), "rng": rng}
    found = kept(lambda: scores.cross_validate(estimator, x, weights, **settings), names)
    assert found is None or np.isfinite(found.loss)


ABOUT = ("data", "points", "columns", "x", "size", "probability")


@pytest.mark.slow  # ten examples take as long as the compiling of what they run
@pytest.mark.parametrize("structure", [*STRUCTURES, "auto"])
@given(data=st.data(), d=dimensions(), rng=seeds())
def test_densities(structure, data, d, rng):
    x, more, places = (data.draw(arrays((data.draw(sizes(0, most)), d))) for most in (9, 3, 4))
    fit = kept(lambda: BayesianKDE(structure, max_sweeps=20).fit(x), ABOUT)
    if fit is None:
        return
    assert np.isfinite(fit.log_evidence)
    for averaged in (False, True):
        kept(lambda a=averaged: fit.log_density(places, averaged=a), ABOUT)
    kept(lambda: fit.interval(places, 0.9, size=5, rng=rng), ABOUT)
    assert kept(lambda: fit.sample(3, rng), ABOUT) is not None
    kept(lambda: fit.updated(more).log_density(places), ABOUT)
