"""Surrogates of log densities on every kind of array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from tests.fuzz.contract import kept
from tests.fuzz.strategies import arrays, dimensions, powers, seeds, sizes

NAMES = ("x", "y", "points", "point", "values", "weights", "weight", "num_folds", "length_scale", "basis", "base")
ESTIMATORS = {
    "Lite": lambda kernel: S.Lite(kernel),
    "Nystrom": lambda kernel: S.Nystrom(kernel, num_basis=3),
    "Finite": lambda kernel: S.Finite(kernel, num_features=4),
    "Full": lambda kernel: S.Full(kernel),
}
SCALES = st.one_of(st.just("median"), powers())


@st.composite
def samples(draw):
    """Points, weights or none, and other points of the same dimension."""
    d = draw(dimensions())
    n = draw(sizes(0, 8))
    weights = draw(st.one_of(st.none(), arrays((draw(st.sampled_from([n, n, n, 2])),))))
    return draw(arrays((n, d))), weights, draw(arrays((draw(sizes()), d)))


@pytest.mark.parametrize("name", ESTIMATORS)
@given(sample=samples(), scale=SCALES, base=st.sampled_from(["gaussian", "uniform"]))
def test_estimators(name, sample, scale, base):
    x, weights, y = sample
    estimator = ESTIMATORS[name](K.Gaussian(scale))
    fitted = kept(lambda: type(estimator)(**{**vars(estimator), "base": base}).fit(x, weights), NAMES)
    if fitted is not None:
        for method in ("log_density", "score", "hessian_diag", "laplacian", "objective"):
            kept(lambda m=method: getattr(fitted, m)(y), NAMES)


@given(sample=samples(), rng=seeds())
def test_online_features(sample, rng):
    x, weights, y = sample
    online = kept(lambda: S.Finite(num_features=4).online(x, weights, rng=rng), NAMES)
    if online is not None:
        for point in np.asarray(y, dtype=float):
            kept(lambda p=point: online.update(p), NAMES)
        kept(lambda: online.fitted().score(x), NAMES)


@given(sample=samples(), folds=st.integers(0, 9))
def test_cross_validation(sample, folds):
    x, weights, _ = sample
    found = kept(lambda: S.cross_validate(S.Lite(), x, weights, num_folds=folds), NAMES)
    assert found is None or np.isfinite(found.loss)


@given(sample=samples(), data=st.data())
def test_values(sample, data):
    x, _, y = sample
    values = data.draw(arrays((len(x),)))
    fitted = kept(lambda: S.Values(max_iterations=5).fit(x, values), NAMES)
    if fitted is not None:
        for method in ("log_density", "score", "hessian_diag", "covariance"):
            kept(lambda m=method: getattr(fitted, m)(y), NAMES)
