"""Scalar profiles of the kernels and their derivatives, compiled.

A radial kernel is k(x, y) = phi(s) with s = sum_i (x_i - y_i)^2 / l_i^2; a dot-product kernel is
k(x, y) = psi(t) with t = sum_i x_i y_i / l_i^2. Everything else (gradients, mixed derivatives,
Laplacians, the Stein trace) follows from phi or psi and their derivatives by the chain rule, in
``base.py`` for whole matrices and in the samplers' own loops. A family is an integer here, not a function
object, because compiled functions that take functions cannot be cached on disk.

Compiled callers pass the order of a derivative as ``np.int64(1)``: for a bare number Numba would compile another copy
of the function, half a second to a second each.
"""

import numpy as np

from pymc_kernel.machine_code import compiled

# POWER is (1 + s / a)^-b: rational quadratic (a = 2 alpha, b = alpha), inverse multiquadric (a = 1); POLYNOMIAL is
# (a + t)^b with b a whole number: linear (b = 1) and polynomial.
GAUSSIAN, POWER, MATERN32, MATERN52, LAPLACE, POLYNOMIAL = range(6)

# Adding 1.5 * 2^52 rounds a number of moderate size to the nearest whole one and leaves that in the last bits.
_ROUNDER = 6755399441055744.0
_LOG2_E = 1.4426950408889634  # 1 / log 2
# Log 2 in two parts, the first with zero bits at its end, so that its products with whole numbers are exact.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_SMALLEST_EXPONENT = -708.0  # whose exponential is a normal number; below, it counts as zero
_FARTHEST = 1000.0  # scaled distance beyond which exp(-r) and r exp(-r) are zero in floating point


@compiled
def exp_in_place(values):
    """Overwrite ``values`` (n,) by their exponentials, to one unit in the last place or two.

    exp(x) = 2^k exp(r) with |r| <= ln(2) / 2 by the Taylor polynomial of degree 12, in plain arithmetic that the
    compiler puts into vector registers: several times faster than calls of the library's function, and the same
    on every machine. Below -708 the result is zero; arguments above 708 are not supported.
    """
    for i in range(values.shape[0]):
        x = max(values[i], _SMALLEST_EXPONENT)
        shifted = x * _LOG2_E + _ROUNDER
        k = shifted - _ROUNDER
        r = (x - k * _LN2_HIGH) - k * _LN2_LOW
        p = 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        # 2^k has k + 1023 as its exponent, the top bits but one.
        power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
        values[i] = ((p * r + 1.0) * r + 1.0) * power if values[i] >= _SMALLEST_EXPONENT else 0.0


@compiled
def fill_derivatives(family, a, b, argument, value, slope, curvature):
    """Write profile and first two derivatives of a radial family at each ``argument`` (n,); four different arrays.

    One exponential or power serves all three. See :func:`fill_profile`.
    """
    n = argument.shape[0]
    if family == GAUSSIAN:
        for i in range(n):
            value[i] = -0.5 * argument[i]
        exp_in_place(value)
        for i in range(n):
            slope[i] = -0.5 * value[i]
            curvature[i] = 0.25 * value[i]
    elif family == POWER:
        for i in range(n):
            value[i] = 1.0 + argument[i] / a
        if b == 0.5:
            for i in range(n):
                value[i] = 1.0 / np.sqrt(value[i])
        elif b == 1.0:
            for i in range(n):
                value[i] = 1.0 / value[i]
        else:
            for i in range(n):
                value[i] **= -b
        for i in range(n):
            inverse = 1.0 / (a + argument[i])
            slope[i] = -b * value[i] * inverse
            curvature[i] = -(b + 1.0) * slope[i] * inverse
    else:
        square = 3.0 if family == MATERN32 else 5.0 if family == MATERN52 else 1.0
        for i in range(n):
            slope[i] = min(np.sqrt(square * argument[i]), _FARTHEST)
            value[i] = -slope[i]
        exp_in_place(value)
        for i in range(n):
            r, decay = slope[i], value[i]
            if family == MATERN52:
                value[i] = (1.0 + r + r * r / 3.0) * decay
                slope[i] = -(5.0 / 6.0) * (1.0 + r) * decay
                curvature[i] = (25.0 / 12.0) * decay
            elif family == MATERN32:
                value[i] = (1.0 + r) * decay
                slope[i] = -1.5 * decay
                curvature[i] = 2.25 * decay / r if r > 0.0 else 0.0
            else:
                slope[i] = -0.5 * decay / r if r > 0.0 else 0.0
                curvature[i] = 0.25 * decay * (1.0 + 1.0 / r) / (r * r) if r > 0.0 else 0.0


@compiled
def fill_profile(family, a, b, order, argument, out):
    """Write the ``order``-th derivative of the profile at each ``argument`` (n,) into ``out``, maybe the same array.

    ``family`` is one of the constants of this module, with shape parameters ``a`` and ``b``, ignored where it has none;
    order 0 is the value. The smooth families have every order, Matern and Laplace up to the second. Where a derivative
    is singular at zero distance (Matern 3/2 from the second, Laplace from the first) the value 0 is written: it only
    ever multiplies a displacement that is zero too.
    """
    n = argument.shape[0]
    if family == GAUSSIAN:
        factor = (-0.5) ** order
        for i in range(n):
            out[i] = -0.5 * argument[i]
        exp_in_place(out)
        if order > 0:
            for i in range(n):
                out[i] *= factor
    elif family == POWER:
        factor = 1.0
        for k in range(order):
            factor *= -(b + k) / a
        exponent = -(b + order)
        for i in range(n):
            base = 1.0 + argument[i] / a
            if exponent == -0.5:
                out[i] = factor / np.sqrt(base)
            elif exponent == -1.5:
                out[i] = factor / (base * np.sqrt(base))
            else:
                out[i] = factor * base**exponent
    elif family == POLYNOMIAL:
        degree = int(b)
        factor = 1.0
        for k in range(order):
            factor *= degree - k
        for i in range(n):
            base, power = a + argument[i], factor
            for _ in range(degree - order):
                power *= base
            out[i] = power
    else:
        derivatives = np.empty((3, n))
        fill_derivatives(family, a, b, argument, derivatives[0], derivatives[1], derivatives[2])
        for i in range(n):
            out[i] = derivatives[order, i]


@compiled
def radial_row(point, others_t, inverse_length_scale, out):
    """Write s(x, Y_j) = sum_i ((x_i - Y_ji) / l_i)^2 for every j into ``out`` (n,).

    ``others_t`` is (d, n): the loop over points is the inner one, so it runs in vector registers. The
    differences are taken before they are squared; expanding the square instead would lose the small
    distances that kernels with a kink at zero depend on.
    """
    d, n = others_t.shape
    for j in range(n):
        out[j] = 0.0
    for i in range(d % 2):
        x, inverse = point[i], inverse_length_scale[i]
        for j in range(n):
            difference = (x - others_t[i, j]) * inverse
            out[j] = difference * difference
    for i in range(d % 2, d, 2):  # two at a time: sums are read and written once
        x, inverse = point[i], inverse_length_scale[i]
        y, other = point[i + 1], inverse_length_scale[i + 1]
        for j in range(n):
            first, second = (x - others_t[i, j]) * inverse, (y - others_t[i + 1, j]) * other
            out[j] += first * first + second * second
