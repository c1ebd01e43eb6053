"""Scalar profiles of the kernels and their derivatives, compiled.

A radial kernel is k(x, y) = phi(s) with s = sum_i (x_i - y_i)^2 / l_i^2; a dot-product kernel is
k(x, y) = psi(t) with t = sum_i x_i y_i / l_i^2. Everything else (gradients, mixed derivatives,
Laplacians, the Stein trace) follows from phi or psi and their derivatives by the chain rule, in
``base.py`` for whole matrices and in the samplers' own loops. A family is an integer here, not a function
object, because compiled functions that take functions cannot be cached on disk.

Imports NumPy and Numba only.
"""

import numba
import numpy as np

__all__ = ["GAUSSIAN", "LAPLACE", "MATERN32", "MATERN52", "POLYNOMIAL", "POWER", "fill_profile", "radial_row"]

GAUSSIAN = 0
POWER = 1  # (1 + s / a)^-b: rational quadratic (a = 2 alpha, b = alpha), inverse multiquadric (a = 1)
MATERN32 = 2
MATERN52 = 3
LAPLACE = 4
POLYNOMIAL = 5  # (a + t)^b with b a whole number: linear (b = 1) and polynomial


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fill_profile(family, a, b, order, argument, out):
    """Write the ``order``-th derivative of the profile at each ``argument`` into ``out``.

    Parameters
    ----------
    family : int
        One of the constants of this module.
    a, b : float
        Shape parameters, see the constants; ignored where a family has none.
    order : int
        0 for the value. The smooth families have every order, Matern and Laplace up to the second.
    argument, out : ndarray (n,)
        May be the same array.

    Notes
    -----
    Where a derivative is singular at zero distance (Matern 3/2 from the second, Laplace from the first)
    the value 0 is written there: it only ever multiplies a displacement that is zero too.
    """
    n = argument.shape[0]
    if family == GAUSSIAN:
        factor = (-0.5) ** order
        for i in range(n):
            out[i] = factor * np.exp(-0.5 * argument[i])
    elif family == POWER:
        factor = 1.0
        for k in range(order):
            factor *= -(b + k) / a
        exponent = -(b + order)
        if exponent == -0.5:
            for i in range(n):
                out[i] = factor / np.sqrt(1.0 + argument[i] / a)
        elif exponent == -1.5:
            for i in range(n):
                base = 1.0 + argument[i] / a
                out[i] = factor / (base * np.sqrt(base))
        else:
            for i in range(n):
                out[i] = factor * (1.0 + argument[i] / a) ** exponent
    elif family == MATERN32:
        root3 = np.sqrt(3.0)
        for i in range(n):
            r = root3 * np.sqrt(argument[i])
            decay = np.exp(-r)
            if order == 0:
                out[i] = (1.0 + r) * decay
            elif order == 1:
                out[i] = -1.5 * decay
            else:
                out[i] = 2.25 * decay / r if r > 0.0 else 0.0
    elif family == MATERN52:
        root5 = np.sqrt(5.0)
        for i in range(n):
            r = root5 * np.sqrt(argument[i])
            decay = np.exp(-r)
            if order == 0:
                out[i] = (1.0 + r + r * r / 3.0) * decay
            elif order == 1:
                out[i] = -(5.0 / 6.0) * (1.0 + r) * decay
            else:
                out[i] = (25.0 / 12.0) * decay
    elif family == LAPLACE:
        for i in range(n):
            r = np.sqrt(argument[i])
            decay = np.exp(-r)
            if order == 0:
                out[i] = decay
            elif r == 0.0:
                out[i] = 0.0
            elif order == 1:
                out[i] = -0.5 * decay / r
            else:
                out[i] = 0.25 * decay * (1.0 + 1.0 / r) / (r * r)
    else:
        degree = int(b)
        factor = 1.0
        for k in range(order):
            factor *= degree - k
        exponent = max(degree - order, 0)
        for i in range(n):
            base = a + argument[i]
            value = factor
            for _ in range(exponent):
                value *= base
            out[i] = value


@numba.njit(cache=True, nogil=True, error_model="numpy")
def radial_row(point, others_t, inverse_length_scale, out):
    """Write s(x, Y_j) = sum_i ((x_i - Y_ji) / l_i)^2 for every j into ``out`` (n,).

    ``others_t`` is (d, n): the loop over points is the inner one, so it runs in vector registers. The
    differences are taken before they are squared; expanding the square instead would lose the small
    distances that kernels with a kink at zero depend on.
    """
    d, n = others_t.shape
    for j in range(n):
        out[j] = 0.0
    for i in range(d):
        x = point[i]
        inverse = inverse_length_scale[i]
        for j in range(n):
            difference = (x - others_t[i, j]) * inverse
            out[j] += difference * difference
