"""Vectors in the processor's registers and arrays, as instructions of the compiler that Numba is built on.

Compiled loops whose sums must not go through memory are written with them, in ``stein/registers.py`` and
``scores/registers.py``. Imports the standard library, Numba, llvmlite, and a
sibling.
"""

import math

from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from pymc_kernel.kernels.profiles import LN2_HIGH, LN2_LOW, LOG2_E, ROOT_HALF_BITS, ROUNDER, SMALLEST_EXPONENT

__all__ = ["DOUBLE", "INT", "Array", "Vectors"]

DOUBLE, INT, _INDEX = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_DEGREE = 12  # of the Taylor polynomial of the exponential
_LOG_DEGREE = 21  # of the series of the logarithm


class Vectors:
    """Arithmetic of vectors of ``lanes`` numbers, as instructions of the compiler."""

    def __init__(self, builder, lanes):
        self.builder, self.lanes = builder, lanes
        self.type, self.single = ir.VectorType(DOUBLE, lanes), ir.VectorType(ir.FloatType(), lanes)

    def constant(self, number):
        """Return a vector with the same number in all places."""
        return ir.Constant(self.type, [number] * self.lanes)

    def everywhere(self, number):
        """Return a vector with the same number, which is known when it runs, in all places."""
        first = self.builder.insert_element(ir.Constant(self.type, ir.Undefined), number, ir.Constant(_INDEX, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, self.lanes), None))

    def load(self, pointer):
        """Return the vector that begins at the number pointed to."""
        return self.builder.load(self.builder.bitcast(pointer, self.type.as_pointer()), align=8)

    def store(self, vector, pointer):
        """Write the vector from the number pointed to on."""
        self.builder.store(vector, self.builder.bitcast(pointer, self.type.as_pointer()), align=8)

    def multiply_add(self, a, b, c):
        """Return a b + c, rounded once where the processor can."""
        return self._call(f"fmuladd.v{self.lanes}f64", a, b, c)

    def inverse_root(self, z):
        """Return z^-1/2, right but for the last digit: in single precision first, then by one step of third order.

        With e = 1 - z r^2 it is r (1 - e)^-1/2 = r (1 + e / 2 + 3 e^2 / 8 + ...), and e is 1e-7. A root and a division
        in double precision take longer than all else of a pair of few coordinates.
        """
        builder = self.builder
        root = self._call(f"sqrt.v{self.lanes}f32", builder.fptrunc(z, self.single))
        r = builder.fpext(builder.fdiv(ir.Constant(self.single, [1.0] * self.lanes), root), self.type)
        e = self.multiply_add(builder.fneg(z), builder.fmul(r, r), self.constant(1.0))
        series = self.multiply_add(e, self.constant(0.375), self.constant(0.5))
        return self.multiply_add(builder.fmul(e, r), series, r)

    def root(self, z):
        """Return z^1/2, rounded once."""
        return self._call(f"sqrt.v{self.lanes}f64", z)

    def exponential(self, x):
        """Return exp(x) to one unit in the last place or two, as ``profiles.exp_in_place`` does; zero below -708."""
        builder, integers = self.builder, ir.VectorType(INT, self.lanes)
        is_normal = builder.fcmp_ordered(">=", x, self.constant(SMALLEST_EXPONENT))
        x = builder.select(is_normal, x, self.constant(SMALLEST_EXPONENT))
        shifted = self.multiply_add(x, self.constant(LOG2_E), self.constant(ROUNDER))
        k = builder.fneg(builder.fsub(shifted, self.constant(ROUNDER)))
        r = self.multiply_add(k, self.constant(LN2_LOW), self.multiply_add(k, self.constant(LN2_HIGH), x))
        series = self.constant(1.0 / math.factorial(_DEGREE))
        for power in range(_DEGREE - 1, -1, -1):
            series = self.multiply_add(series, r, self.constant(1.0 / math.factorial(power)))
        # 2^k has k + 1023 as its exponent, the top bits but one.
        bits = builder.add(builder.bitcast(shifted, integers), ir.Constant(integers, [1023] * self.lanes))
        power = builder.bitcast(builder.shl(bits, ir.Constant(integers, [52] * self.lanes)), self.type)
        return builder.select(is_normal, builder.fmul(series, power), self.constant(0.0))

    def logarithm(self, x):
        """Return log(x) of x >= 1, right but for the last digit, as ``profiles.log_in_place`` does."""
        builder, integers = self.builder, ir.VectorType(INT, self.lanes)
        bits = builder.bitcast(x, integers)
        places = ir.Constant(integers, [52] * self.lanes)
        whole = builder.lshr(builder.sub(bits, ir.Constant(integers, [ROOT_HALF_BITS] * self.lanes)), places)
        mantissa = builder.bitcast(builder.sub(bits, builder.shl(whole, places)), self.type)
        k, one = builder.uitofp(whole, self.type), self.constant(1.0)
        f = builder.fdiv(builder.fsub(mantissa, one), builder.fadd(mantissa, one))
        s = builder.fmul(f, f)
        series = self.constant(1.0 / _LOG_DEGREE)
        for power in range(_LOG_DEGREE - 2, 1, -2):
            series = self.multiply_add(series, s, self.constant(1.0 / power))
        rest = self.multiply_add(builder.fmul(f, s), series, f)
        rest = self.multiply_add(rest, self.constant(2.0), builder.fmul(k, self.constant(LN2_LOW)))
        return self.multiply_add(k, self.constant(LN2_HIGH), rest)

    def is_from(self, first):
        """Return in which places, counted from 0, the place is ``first`` or later."""
        integers = ir.VectorType(INT, self.lanes)
        one = self.builder.insert_element(ir.Constant(integers, ir.Undefined), first, ir.Constant(_INDEX, 0))
        every = self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INDEX, self.lanes), None))
        return self.builder.icmp_signed(">=", ir.Constant(integers, list(range(self.lanes))), every)

    def sum(self, vector):
        """Return the sum of the places, halves added to each other."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            indices = ir.VectorType(_INDEX, lanes)
            low, high = (ir.Constant(indices, list(range(s, s + lanes))) for s in (0, lanes))
            vector = self.builder.fadd(*(self.builder.shuffle_vector(vector, vector, half) for half in (low, high)))
        return self.builder.extract_element(vector, ir.Constant(_INDEX, 0))

    def _call(self, name, *arguments):
        signature = ir.FunctionType(arguments[0].type, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.{name}")
        return self.builder.call(function, arguments)


class Array:
    """An array of doubles, its shape and where its numbers are."""

    def __init__(self, context, builder, type_, value):
        array = make_array(type_)(context, builder, value)
        self.shape = cgutils.unpack_tuple(builder, array.shape, type_.ndim)
        self._builder, self._data = builder, array.data

    def at(self, *terms):
        """Return the pointer to the number whose place is the sum of ``terms``."""
        place = ir.Constant(INT, 0)
        for term in terms:
            place = self._builder.add(place, ir.Constant(INT, term) if isinstance(term, int) else term)
        return self._builder.gep(self._data, [place])
