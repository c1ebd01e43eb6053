"""Surrogates of a log density on every kind of array, against the loops of the reference."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pymc_kernel import kernels as K
from pymc_kernel import scores
from tests.fuzz.contract import kept
from tests.fuzz.strategies import arrays, dimensions, powers, seeds, sizes
from tests.reference import slow_kernels, slow_scores
from tests.reference.second_derivatives import laplacian

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
def kernels(draw):
    family = draw(st.sampled_from(FAMILIES))
    return family(draw(st.one_of(st.just("median"), powers())))


@st.composite
def estimators(draw, make):
    settings = {"kernel": draw(kernels()), "base": draw(st.sampled_from(["gaussian", "gaussian", "uniform"]))}
    return make(**settings, regularization=draw(st.sampled_from([1e-3, 1e-3, 1.0, 1e-150, 1e150])))


@st.composite
def samples(draw, most=5):
    """Points, weights or none, and places to look at."""
    n, d = draw(sizes(0, most)), draw(dimensions())
    weights = draw(st.one_of(st.none(), arrays((draw(st.sampled_from([n, n, n, 2])),)).map(np.abs)))
    return draw(arrays((n, d))), weights, draw(arrays((draw(sizes(1, 3)), d)))


def looked_at(surrogate, places):
    """See that all that a surrogate says is numbers."""
    for name in ("log_density", "score"):
        kept(lambda n=name: getattr(surrogate, n)(places), NAMES)


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@given(data=st.data(), sample=samples(), rng=seeds())
def test_score_matching(make, data, sample, rng):
    estimator, (x, weights, places) = data.draw(estimators(make)), sample
    fit = kept(lambda: estimator.fit(x, weights, rng=rng), NAMES)
    if fit is not None:
        looked_at(fit, places)
        looked_at(fit, np.asarray(x, dtype=float))


def ordinary(values):
    """Return whether loops in plain floating point can be trusted with these numbers."""
    values = np.abs(np.asarray(values, dtype=float))
    return bool(np.isfinite(values).all() and values.max(initial=0.0) < 1e8)


@pytest.mark.parametrize("make", [ESTIMATORS["lite"], ESTIMATORS["nystrom"]], ids=["lite", "nystrom"])
@given(data=st.data(), sample=samples())
def test_systems_are_those_of_the_loops(make, data, sample):
    estimator, (x, weights, _) = make(kernel=data.draw(st.sampled_from(FAMILIES))(1.0)), sample
    assume(ordinary(x) and kept(lambda: estimator.fit(x, weights), NAMES) is not None)
    x = np.asarray(x, dtype=float)
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=float)
    weights = weights / weights.max() / (weights / weights.max()).sum()
    estimator, basis = estimator.prepare(x)
    base = scores.score_matching.base_measure("gaussian", x, weights)
    curvature, slope, _ = estimator.system(x, weights, basis, base)
    gradients, laplacians = derivatives(estimator, x, basis)
    expected_curvature, expected_slope = slow_scores.system(gradients, laplacians, base.score(x), weights)
    # Cancellation leaves an error of the largest terms' rounding.
    reach = 1.0 + np.abs(x - basis.mean(axis=0)).max() ** 2
    np.testing.assert_allclose(curvature, expected_curvature, rtol=1e-9, atol=1e-13 * reach)
    largest = np.abs(base.score(x)).max()
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-9, atol=1e-13 * reach * (1.0 + largest))


def derivatives(estimator, x, basis):
    """Return gradients (n, m, d) and Laplacians (n, m) of the basis functions, one after the other."""
    kernel = estimator.kernel
    if isinstance(estimator, scores.Lite):
        return kernel.gradient(x, basis), slow_kernels.laplacian(kernel, x, basis)
    single = [estimator.assemble(row, basis, NO_BASE(x)) for row in np.eye(basis.size)]
    return np.stack([s.score(x) for s in single], axis=1), np.stack([laplacian(s, x) for s in single], axis=1)


def NO_BASE(x):
    return scores.score_matching.base_measure("uniform", x, None)


@given(data=st.data(), d=dimensions(), rng=seeds(), noisy=st.booleans())
def test_regression_on_values(data, d, rng, noisy):
    n = data.draw(sizes(0, 9))
    points, places = data.draw(arrays((n, d))), data.draw(arrays((2, d)))
    values = data.draw(arrays((data.draw(st.sampled_from([n, n, n, 2])),)))
    fit = kept(lambda: scores.Values(max_iterations=2).fit(points, values, rng, noisy=noisy), NAMES)
    if fit is not None:
        looked_at(fit, places)
        kept(lambda: np.array([fit.error, fit.noise_sd]), NAMES)


@given(data=st.data(), sample=samples(9), rng=seeds())
def test_cross_validation(data, sample, rng):
    make = ESTIMATORS[data.draw(st.sampled_from(["lite", "finite", "nystrom"]))]
    x, weights, _ = sample
    names = (*NAMES, "num_folds", "regularizations", "length_scales")
    folds, estimator = data.draw(st.integers(0, 4)), data.draw(estimators(make))
    candidates = data.draw(st.sampled_from([None, [1.0], [1e-150, 1e150], [np.nan], []]))
    found = kept(
        lambda: scores.cross_validate(
            estimator, x, weights, num_folds=folds, length_scales=candidates, regularizations=(1e-3, 1.0), rng=rng
        ),
        names,
    )
    assert found is None or np.isfinite(found.loss)
