import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel.kernels import profiles

RADIAL = [
    K.Gaussian(),
    K.RationalQuadratic(alpha=2.5),
    K.InverseMultiquadric(),
    K.Matern32(),
    K.Matern52(),
    K.Laplace(),
]


def test_exponential_to_the_last_places(rng):
    x = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(size=2000), [0.0, -0.0, -1e-300]])
    out = x.copy()
    profiles.exp_in_place(out)
    np.testing.assert_allclose(out, np.exp(x), rtol=5e-16)
    far = np.array([-1e4, -np.inf])
    profiles.exp_in_place(far)
    assert (far < 1e-300).all()


@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_value_and_slope_at_once_are_those_apart(kernel, rng):
    argument = rng.gamma(1.0, 3.0, size=40) + 1e-3
    a, b = kernel.shape_parameters
    value, slope, expected = np.empty(40), np.empty(40), np.empty(40)
    profiles.fill_value_and_slope(kernel.family, a, b, argument, value, slope)
    for order, found in ((0, value), (1, slope)):
        profiles.fill_profile(kernel.family, a, b, order, argument, expected)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_logarithm_to_the_last_places(rng):
    x = np.concatenate([10.0 ** rng.uniform(-300, 300, 2000), 1.0 + 10.0 ** rng.uniform(-16, 0, 2000), [1.0, 0.5**0.5]])
    out = x.copy()
    profiles.log_in_place(out)
    np.testing.assert_allclose(out, np.log(x), rtol=5e-16, atol=1e-30)


@pytest.mark.parametrize(
    "kernel", [*RADIAL[:-1], K.InverseMultiquadric(beta=0.8)], ids=lambda k: f"{type(k).__name__} {k.shape_parameters}"
)
def test_value_slope_and_curvature_at_once_are_those_apart(kernel, rng):
    argument = np.append(rng.gamma(1.0, 3.0, size=39) + 1e-3, 0.0)
    _, b = kernel.shape_parameters
    found, expected = np.empty((3, 40)), np.empty(40)
    profiles.fill_value_slope_and_curvature(kernel.family, b, argument, *found)
    for order in range(3):
        profiles.fill_profile(kernel.family, 1.0, b, order, argument, expected)
        np.testing.assert_allclose(found[order], expected, rtol=1e-13)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("kernel", [*RADIAL, K.Linear(), K.Polynomial(degree=3)], ids=repr)
def test_profiles_written_from_python_are_those_of_compiled_code(kernel, order, rng):
    argument = rng.gamma(1.0, 3.0, size=40) + 1e-3
    a, b = kernel.shape_parameters
    found, expected = np.empty(40), np.empty(40)
    profiles.write_profile(kernel.family, a, b, order, argument, found)
    profiles.fill_profile(kernel.family, a, b, np.int64(order), argument, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    slope = np.empty(40)
    if kernel.family != profiles.POLYNOMIAL and order < 2:
        profiles.write_value_and_slope(
            kernel.family, a, b, argument, *((found, slope) if order == 0 else (slope, found))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-13)
