from dataclasses import replace

import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel.errors import NotDifferentiableError
from pymc_kernel.scores.score_matching import base_measure
from tests.reference.differences import central_differences, score_matching_loss

KERNELS = [K.Gaussian(np.array([1.5, 2.0, 1.0])), K.RationalQuadratic(1.7, alpha=2.0), K.InverseMultiquadric(1.5)]
ESTIMATORS = [
    S.Lite(KERNELS[0]),
    S.Lite(K.Matern52(2.0), base="uniform"),
    S.Lite(KERNELS[1], penalty="rkhs"),
    S.Finite(KERNELS[0], num_features=40),
    S.Nystrom(KERNELS[1], num_basis=6),
    S.Nystrom(KERNELS[0], num_basis=5, base="uniform"),
    S.Full(KERNELS[0]),
    S.Full(KERNELS[1], base="uniform"),
]


def name(value):
    return f"{type(value).__name__}-{type(value.kernel).__name__}-{value.base}"


@pytest.fixture
def sample(rng):
    return rng.normal(size=(60, 3)) @ np.diag([1.0, 2.0, 0.5]) + 5.0, rng.random(60)


def test_the_gaussian_base_is_the_gaussian_fit_in_any_units(sample, rng):
    x, weights = sample
    weights, units = weights / weights.sum(), np.array([1e-6, 1.0, 1e6])
    score = base_measure("gaussian", x * units, weights).score(x * units) * units
    np.testing.assert_allclose(score, base_measure("gaussian", x, weights).score(x), rtol=1e-6, atol=1e-9)
    x = rng.normal(size=(200, 2)) @ np.array([[2.0, 0.0], [1.0, 0.5]])
    fitted = S.Lite(K.Gaussian(1.0), regularization=1e12).fit(x)
    covariance = np.cov(x.T, bias=True)
    np.testing.assert_allclose(fitted.score(x), -(x - x.mean(axis=0)) @ np.linalg.inv(covariance), atol=1e-5)


@pytest.mark.parametrize("estimator", [S.Lite(KERNELS[0]), S.Finite(KERNELS[0]), S.Full(KERNELS[0])], ids=name)
def test_points_that_coincide_are_said_to(estimator):
    with pytest.raises(ValueError, match="x all coincide"):
        estimator.fit(np.full((4, 3), 0.1))
    uniform = replace(estimator, base="uniform").fit(np.full((4, 3), 0.1))
    assert np.isfinite(uniform.score(np.eye(3))).all()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_score_is_that_of_the_log_density(estimator, sample, rng):
    fitted = estimator.fit(*sample, rng=rng)
    x = sample[0][:7] + 0.1
    score = central_differences(fitted.log_density, x)
    np.testing.assert_allclose(fitted.score(x), score, atol=1e-7 * np.abs(score).max())


def solved(estimator, x, weights, basis, base, strength=None):
    """Return the surrogate of an estimator with a numeric length scale in the span of a basis, and its coefficients."""
    curvature, slope = estimator.system(x, weights / weights.sum(), basis, base)
    penalty = estimator.penalty_matrix(basis)
    penalty = np.eye(len(slope)) if penalty is None else penalty
    strength = estimator.regularization if strength is None else strength
    best = np.linalg.solve(curvature + strength * penalty, slope)
    return estimator.assemble(best, basis, base), best, penalty


@pytest.mark.parametrize("estimator", ESTIMATORS[:6], ids=name)
def test_regularized_objective_is_stationary_at_the_fit(estimator, sample, rng):
    x, weights = sample
    prepared, basis = estimator.prepare(x, np.random.default_rng(1))
    fitted = estimator.fit(x, weights, rng=np.random.default_rng(1))
    base = base_measure(estimator.base, x, weights / weights.sum())
    again, best, penalty = solved(prepared, x, weights, basis, base)
    np.testing.assert_allclose(again.score(x), fitted.score(x), rtol=1e-4, atol=1e-4)

    def loss(coefficients):
        norm = coefficients @ penalty @ coefficients
        fit = prepared.assemble(coefficients, basis, base)
        return score_matching_loss(fit, x, weights) + 0.5 * estimator.regularization * norm

    for direction in rng.normal(size=(5, len(best))):
        # The loss is quadratic in the coefficients: a long step is as exact as a short one, and rounding small in it.
        step = direction / np.linalg.norm(direction) * max(1.0, np.linalg.norm(best))
        slope_here = loss(best + step) - loss(best - step)
        bend_here = loss(best + step) + loss(best - step) - 2 * loss(best)
        assert bend_here > 0
        assert abs(slope_here) < 1e-3 * bend_here


def test_full_objective_is_stationary(sample, rng):
    """Moving the fit along any function of the space raises objective + strength norm^2 / 2 to second order only.

    For the direction h = k(y, .) the inner product of f and h is f(y), base measure taken off.
    """
    x, weights = sample[0][:25], sample[1][:25]
    estimator = S.Full(K.Gaussian(2.0), regularization=0.05, base="uniform")
    fitted = estimator.fit(x, weights)
    y = x[3] + 0.3
    gradient = K.Gaussian(2.0).gradient(x, y[None])[:, 0]
    squared = ((x - y) ** 2).sum(axis=1)
    laplacian = np.exp(-squared / 8) * (squared / 16 - 3 / 4)
    derivative = np.average(laplacian + (fitted.score(x) * gradient).sum(axis=1), weights=weights)
    assert derivative + 0.05 * fitted.log_density(y[None])[0] == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("estimator", [S.Lite, S.Finite, S.Nystrom, S.Full])
def test_weights_count_like_repetitions(estimator, rng):
    x = rng.normal(size=(20, 2))
    repeats = rng.integers(1, 4, size=20)
    made = estimator(K.Gaussian(1.0))
    every = np.repeat(x, repeats, axis=0)
    if estimator is S.Full:
        # Repeated points make the Gram matrix singular but not the system.
        one, other = made.fit(x, repeats), made.fit(every)
    else:
        basis = made.prepare(x, rng)[1]
        base = base_measure(made.base, x, repeats / repeats.sum())
        one, other = (solved(made, *given, basis, base)[0] for given in ((x, repeats), (every, np.ones(len(every)))))
    np.testing.assert_allclose(one.score(x), other.score(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "setting", "sizes", "n", "largest"),
    [(S.Finite, "num_features", (30, 300, 3000), 80, 0.1), (S.Nystrom, "num_basis", (2, 8, 40), 40, 0.01)],
)
def test_larger_bases_converge_to_the_full_solution(estimator, setting, sizes, n, largest, rng):
    """Features with |theta|^2 as the squared norm in a space that tends to the RKHS; Nystroem with all points."""
    x, settings = rng.normal(size=(n, 2)), {"kernel": K.Gaussian(1.5), "regularization": 0.01}
    full = S.Full(**settings).fit(x).score(x)
    fits = [estimator(**settings, **{setting: size}).fit(x, rng=rng) for size in sizes]
    errors = [np.sqrt(((fit.score(x) - full) ** 2).mean()) for fit in fits]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < largest


@pytest.mark.parametrize(
    "estimator",
    [S.Lite(penalty="l2"), S.Lite(penalty="rkhs"), S.Finite(num_features=20), S.Nystrom(num_basis=4)],
    ids=["l2", "rkhs", "finite", "nystrom"],
)
def test_cross_validation_is_held_out_loss_of_separate_fits(estimator, rng):
    x = rng.normal(size=(40, 2)).cumsum(axis=0) * 0.1
    settings = {"length_scales": [0.3, 1.0], "regularizations": [1e-2, 1.0], "num_folds": 4}
    found = S.cross_validate(estimator, x, rng=np.random.default_rng(1), **settings)
    expected = np.zeros((2, 2))
    seed = int(np.random.default_rng(1).integers(2**63))
    base = base_measure(estimator.base, x, np.full(40, 1 / 40))
    for i, length_scale in enumerate(settings["length_scales"]):
        candidate = replace(estimator, kernel=K.Gaussian(length_scale))
        candidate, basis = candidate.limited(200, 2).prepare(x, np.random.default_rng(seed))
        for j, strength in enumerate(settings["regularizations"]):
            for fold in np.array_split(np.arange(40), 4):
                rest = np.setdiff1d(np.arange(40), fold)
                fitted, best, _ = solved(candidate, x[rest], np.ones(30), basis, base, strength)
                nothing = candidate.assemble(np.zeros(len(best)), basis, base)
                losses = [score_matching_loss(fit, x[fold]) for fit in (fitted, nothing)]
                expected[i, j] += (losses[0] - losses[1]) / 4
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5, atol=1e-7)
    i, j = np.unravel_index(expected.argmin(), (2, 2))
    assert found.estimator.kernel.length_scale == settings["length_scales"][i]
    assert found.estimator.regularization == settings["regularizations"][j]
    assert found.loss == found.losses.min()


@pytest.mark.parametrize("estimator", [S.Lite(num_basis=500), S.Finite(num_features=500), S.Nystrom(num_basis=500)])
def test_cross_validation_is_limited_in_coefficients(estimator, rng):
    """A basis point of the Nystroem estimator has a coefficient in each of 50 dimensions."""
    x = rng.normal(size=(300, 50))
    limited, basis = estimator.limited(200, 50).prepare(x, rng)
    weights = np.full(300, 1 / 300)
    slope = limited.system(x, weights, basis, base_measure("gaussian", x, weights))[1]
    assert 150 <= len(slope) <= 200


NOT_BY_LOSS = "Lite, Finite or Nystrom"
LINE = np.arange(3.0)


@pytest.mark.parametrize(("error", "message", "call"), [
    (TypeError, "radial kernel", lambda: S.Lite(K.Linear())),
    (NotDifferentiableError, "Matern32", lambda: S.Nystrom(K.Matern32(1.0))),
    (NotDifferentiableError, "Matern52", lambda: S.Full(K.Matern52(1.0))),
    (ValueError, "not negative", lambda: S.Lite().fit(LINE, [1.0, -2.0, 1.0])),
    (ValueError, "4 dimensions", lambda: S.Lite().fit(LINE).score(np.zeros((2, 4)))),
    (ValueError, "num_folds", lambda: S.cross_validate(S.Lite(), LINE, num_folds=9)),
    *((TypeError, NOT_BY_LOSS, lambda e=e: S.cross_validate(e, LINE)) for e in (S.Full(), S.Values(), "lite")),
])  # fmt: skip
def test_bad_input_is_named(error, message, call):
    with pytest.raises(error, match=message):
        call()
