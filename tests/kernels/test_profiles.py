import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel.kernels import profiles

RADIAL = [
    K.Gaussian(),
    K.RationalQuadratic(alpha=2.5),
    K.RationalQuadratic(alpha=1.0),
    K.InverseMultiquadric(),
]


def test_exponential_to_the_last_places(rng):
    x = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(size=2000), [0.0, -0.0, -1e-300]])
    out = x.copy()
    profiles.exp_in_place(out)
    np.testing.assert_allclose(out, np.exp(x), rtol=5e-16)
    far = np.array([-1e4, -np.inf])
    profiles.exp_in_place(far)
    assert (far < 1e-300).all()


@pytest.mark.parametrize("kernel", RADIAL, ids=lambda k: f"{type(k).__name__} {k.shape_parameters}")
def test_derivatives_at_once_are_those_apart(kernel, rng):
    argument = np.append(rng.gamma(1.0, 3.0, size=39) + 1e-3, 0.0)
    found, expected = np.empty((3, 40)), np.empty(40)
    profiles.fill_derivatives(kernel.family, *kernel.shape_parameters, argument, *found)
    for order in range(3):
        profiles.fill_profile(kernel.family, *kernel.shape_parameters, order, argument, expected)
        np.testing.assert_allclose(found[order], expected, rtol=1e-13)


def test_profile_derivatives_of_every_order():
    s = np.array([0.1, 0.9, 3.0])
    h = 1e-5
    smooth = (K.Gaussian(1.0), K.RationalQuadratic(1.0, alpha=0.7), K.InverseMultiquadric(1.0))
    for kernel in (*smooth, K.Matern32(1.0), K.Matern52(1.0), K.Laplace(1.0)):
        a, b = kernel.shape_parameters
        for order in range(1, 5 if kernel in smooth else 3):
            up, down, exact = np.empty(3), np.empty(3), np.empty(3)
            profiles.fill_profile(kernel.family, a, b, order - 1, s + h, up)
            profiles.fill_profile(kernel.family, a, b, order - 1, s - h, down)
            profiles.fill_profile(kernel.family, a, b, order, s, exact)
            np.testing.assert_allclose(exact, (up - down) / (2 * h), rtol=1e-7)
