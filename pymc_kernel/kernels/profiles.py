"""Scalar profiles of the kernels and their derivatives, compiled.

A radial kernel is k(x, y) = phi(s) with s = sum_i (x_i - y_i)^2 / l_i^2; a dot-product kernel is
k(x, y) = psi(t) with t = sum_i x_i y_i / l_i^2. Everything else (gradients, mixed derivatives,
Laplacians, the Stein trace) follows from phi or psi and their derivatives by the chain rule, in
``base.py`` for whole matrices and in the samplers' own loops. A family is an integer here, not a function
object, because compiled functions that take functions cannot be cached on disk.

Compiled callers hand over the order of a derivative as ``np.int64(1)``: for a bare number Numba would compile another
copy of the function, half a second to a second each.

Code in Python calls :func:`write_profile` and :func:`write_value_and_slope`, by which no more is compiled than a family
needs: of Gaussian kernels only the exponential, in a quarter of the time that all families take.

Imports NumPy and Numba only.
"""

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from pymc_kernel.machine_code import compiled

__all__ = [
    "GAUSSIAN",
    "LAPLACE",
    "LN2_HIGH",
    "LN2_LOW",
    "LOG2_E",
    "MATERN32",
    "MATERN52",
    "POLYNOMIAL",
    "POWER",
    "ROOT_HALF_BITS",
    "ROUNDER",
    "SMALLEST_EXPONENT",
    "exp_in_place",
    "fill_profile",
    "fill_value_and_slope",
    "fill_value_slope_and_curvature",
    "log_in_place",
    "radial_row",
    "write_profile",
    "write_value_and_slope",
]

GAUSSIAN = 0
POWER = 1  # (1 + s / a)^-b: rational quadratic (a = 2 alpha, b = alpha), inverse multiquadric (a = 1)
MATERN32 = 2
MATERN52 = 3
LAPLACE = 4
POLYNOMIAL = 5  # (a + t)^b with b a whole number: linear (b = 1) and polynomial


# Adding 1.5 * 2^52 rounds a number of moderate size to the nearest whole one and leaves that in the last bits.
ROUNDER = 6755399441055744.0
LOG2_E = 1.4426950408889634  # 1 / log 2
# Log 2 in two parts, the first with zeros at its end: their multiples by whole numbers are exact.
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10  # the rest of log 2
SMALLEST_EXPONENT = -708.0  # whose exponential is a normal number; below, it counts as zero
# Bits of sqrt(1 / 2): a mantissa is taken between it and its double.
ROOT_HALF_BITS = int(np.float64(np.sqrt(0.5)).view(np.int64))
_FARTHEST = 1000.0  # scaled distance beyond which exp(-r) and r exp(-r) are zero in floating point


def _same_bits(context, builder, signature, values):
    return builder.bitcast(values[0], context.get_value_type(signature.return_type))


@intrinsic
def _bits_of(typing, number):
    """Return the bits of a float64 as an int64; a view of an array would take longer to compile than all around it."""
    return types.int64(types.float64), _same_bits


@intrinsic
def _number_of(typing, bits):
    """Return the float64 with the bits of an int64."""
    return types.float64(types.int64), _same_bits


@compiled
def exp_in_place(values):
    """Overwrite ``values`` (n,) by their exponentials, to one unit in the last place or two.

    exp(x) = 2^k exp(r) with |r| <= ln(2) / 2 by the Taylor polynomial of degree 12, in plain arithmetic that the
    compiler puts into vector registers: several times faster than calls of the library's function, and the same
    on every machine. Below -708 the result is zero; arguments above 708 are not meant.
    """
    for i in range(values.shape[0]):
        x = max(values[i], SMALLEST_EXPONENT)
        shifted = x * LOG2_E + ROUNDER
        k = shifted - ROUNDER
        r = (x - k * LN2_HIGH) - k * LN2_LOW
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
        power = _number_of((_bits_of(shifted) + 1023) << 52)
        values[i] = ((p * r + 1.0) * r + 1.0) * power if values[i] >= SMALLEST_EXPONENT else 0.0


@compiled
def log_in_place(values):
    """Overwrite ``values`` (n,), normal numbers above zero, by their logarithms.

    log(2^k m) = k log 2 + log m with m between sqrt(1/2) and sqrt(2), log m = 2 atanh((m - 1) / (m + 1)) by its series
    to degree 21, right but for the last digit; as quick as :func:`exp_in_place`.
    """
    for i in range(values.shape[0]):
        # Of x sqrt(2) the exponent is k where m is below 1, too.
        bits = _bits_of(values[i])
        whole = (bits - ROOT_HALF_BITS) >> 52
        mantissa, k = _number_of(bits - (whole << 52)), float(whole)
        f = (mantissa - 1.0) / (mantissa + 1.0)
        s = f * f
        p = 1.0 / 21.0
        p = p * s + 1.0 / 19.0
        p = p * s + 1.0 / 17.0
        p = p * s + 1.0 / 15.0
        p = p * s + 1.0 / 13.0
        p = p * s + 1.0 / 11.0
        p = p * s + 1.0 / 9.0
        p = p * s + 1.0 / 7.0
        p = p * s + 0.2
        p = p * s + 1.0 / 3.0
        values[i] = k * LN2_HIGH + (k * LN2_LOW + 2.0 * (f + f * s * p))


@compiled
def fill_value_slope_and_curvature(family, b, argument, value, slope, curvature):
    """Write profile and first two derivatives of a differentiable radial family at ``argument`` (n,), with a = 1.

    One exponential or power serves all three; four different arrays.
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
        if b == 0.5:
            for i in range(n):
                value[i] = 1.0 / np.sqrt(1.0 + argument[i])
        else:
            for i in range(n):
                value[i] = 1.0 + argument[i]
            log_in_place(value)
            for i in range(n):
                value[i] *= -b
            exp_in_place(value)
        for i in range(n):
            inverse = 1.0 / (1.0 + argument[i])
            slope[i] = -b * value[i] * inverse
            curvature[i] = -(b + 1.0) * slope[i] * inverse
    else:  # Matern
        root = np.sqrt(3.0) if family == MATERN32 else np.sqrt(5.0)
        for i in range(n):
            slope[i] = min(root * np.sqrt(argument[i]), _FARTHEST)
            value[i] = -slope[i]
        exp_in_place(value)
        if family == MATERN32:
            for i in range(n):
                r, decay = slope[i], value[i]
                value[i] = (1.0 + r) * decay
                slope[i] = -1.5 * decay
                curvature[i] = 2.25 * decay / r if r > 0.0 else 0.0
        else:
            for i in range(n):
                r, decay = slope[i], value[i]
                value[i] = (1.0 + r + r * r / 3.0) * decay
                slope[i] = -(5.0 / 6.0) * (1.0 + r) * decay
                curvature[i] = (25.0 / 12.0) * decay


@compiled
def fill_value_and_slope(family, a, b, argument, value, slope):
    """Write profile and first derivative of a radial family at ``argument`` (n,); three different arrays.

    One exponential or power serves both: half the time of two calls of :func:`fill_profile`.
    """
    n = argument.shape[0]
    if family == GAUSSIAN:
        for i in range(n):
            value[i] = -0.5 * argument[i]
        exp_in_place(value)
        for i in range(n):
            slope[i] = -0.5 * value[i]
    elif family == POWER:
        fill_profile(family, a, b, np.int64(1), argument, slope)
        factor = -1.0 / b
        for i in range(n):
            value[i] = factor * slope[i] * (a + argument[i])
    else:
        fill_profile(family, a, b, np.int64(0), argument, value)
        fill_profile(family, a, b, np.int64(1), argument, slope)


@compiled
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
            r = min(root3 * np.sqrt(argument[i]), _FARTHEST)
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
            r = min(root5 * np.sqrt(argument[i]), _FARTHEST)
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


def write_profile(family: int, a: float, b: float, order: int, argument: np.ndarray, out: np.ndarray) -> None:
    """Write the ``order``-th derivative of the profile at each ``argument`` (n,) into ``out`` (n,).

    As :func:`fill_profile`, which explains the arguments, for callers in Python.
    """
    if family == GAUSSIAN:
        np.multiply(argument, -0.5, out=out)
        exp_in_place(out)
        if order > 0:
            out *= (-0.5) ** order
    elif family == POLYNOMIAL:
        base, degree = a + argument, int(b)
        out[:] = np.prod(np.arange(degree, degree - order, -1), dtype=float)
        for _ in range(degree - order):
            out *= base
    else:
        fill_profile(family, a, b, np.int64(order), argument, out)


def write_value_and_slope(family: int, a: float, b: float, argument: np.ndarray, value, slope) -> None:
    """Write profile and first derivative of a radial family at ``argument`` (n,); three different arrays.

    As :func:`fill_value_and_slope`, for callers in Python.
    """
    if family == GAUSSIAN:
        write_profile(family, a, b, 0, argument, value)
        np.multiply(value, -0.5, out=slope)
    else:
        fill_value_and_slope(family, a, b, argument, value, slope)


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
    for i in range(d):
        x = point[i]
        inverse = inverse_length_scale[i]
        for j in range(n):
            difference = (x - others_t[i, j]) * inverse
            out[j] += difference * difference
