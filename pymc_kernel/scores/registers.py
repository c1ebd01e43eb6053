"""Sums of Gaussian kernels and their gradients at one point, in the processor's vector registers.

A trajectory evaluates a surrogate of some hundred points at every step. Distances and weights of a panel of points stay
in registers from the first coordinate to the last, where a compiler that makes the loops itself stores and loads them
for every coordinate: a third of the time. Vectors have eight numbers whatever the width of the registers, so that the
same numbers come out on every machine that has fused multiply-add.

Imports Numba, llvmlite, which Numba is built on, and the lower floors.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from pymc_kernel.kernels.registers import INT, Array, Vectors

__all__ = ["LANES", "gaussian_value_and_gradient"]

LANES = 8  # numbers of a vector
_PANEL = 4  # vectors


def _panel(v, start, num_vectors, skipped, point, points_t, coefficients, room, total):
    """Write the instructions that add ``num_vectors`` vectors of points from ``start`` on.

    Weights of the first ``skipped`` points are zero, unless that is None.
    """
    builder, (p, m) = v.builder, points_t.shape
    squares, weights = ([cgutils.alloca_once(builder, v.type) for _ in range(num_vectors)] for _ in range(2))
    for square in squares:
        builder.store(v.constant(0.0), square)
    with cgutils.for_range(builder, p) as coordinates:
        x = v.everywhere(builder.load(point.at(coordinates.index)))
        row = builder.add(start, builder.mul(coordinates.index, m))
        for c, square in enumerate(squares):
            apart = builder.fsub(x, v.load(points_t.at(row, c * LANES)))
            builder.store(v.multiply_add(apart, apart, builder.load(square)), square)
    for c, (square, place) in enumerate(zip(squares, weights, strict=True)):
        profile = v.exponential(builder.fmul(v.constant(-0.5), builder.load(square)))
        weight = builder.fmul(v.load(coefficients.at(start, c * LANES)), profile)
        if skipped is not None:
            weight = builder.select(v.is_from(skipped), weight, v.constant(0.0))
        builder.store(weight, place)
        builder.store(builder.fadd(builder.load(total), weight), total)
    with cgutils.for_range(builder, p) as coordinates:
        row = builder.add(start, builder.mul(coordinates.index, m))
        place = room.at(builder.mul(coordinates.index, ir.Constant(INT, LANES)))
        added = v.load(place)
        for c, weight in enumerate(weights):
            added = v.multiply_add(builder.load(weight), v.load(points_t.at(row, c * LANES)), added)
        v.store(added, place)


@intrinsic
def gaussian_value_and_gradient(typing, point, points_t, coefficients, room, gradient):
    """Return sum_j a_j exp(-|u - U_j|^2 / 2) and write its gradient by u to ``gradient`` (p,).

    Parameters
    ----------
    point : ndarray (p,)
        u.
    points_t : ndarray (p, m)
        U, of at least ``LANES`` points, rows one after the other.
    coefficients : ndarray (m,)
    room : ndarray (p * LANES,)
        For what is between.
    """

    def instructions(context, builder, signature, values):
        arrays = [Array(context, builder, *one) for one in zip(signature.args, values, strict=True)]
        point, points_t, coefficients, room, gradient = arrays
        v = Vectors(builder, LANES)
        p, m = points_t.shape
        total = cgutils.alloca_once(builder, v.type)
        builder.store(v.constant(0.0), total)
        with cgutils.for_range(builder, p) as coordinates:
            v.store(v.constant(0.0), room.at(builder.mul(coordinates.index, ir.Constant(INT, LANES))))
        shared = point, points_t, coefficients, room, total
        width = ir.Constant(INT, _PANEL * LANES)
        num_panels = builder.sdiv(m, width)
        with cgutils.for_range(builder, num_panels) as panels:
            _panel(v, builder.mul(panels.index, width), _PANEL, None, *shared)
        done, lanes, zero = builder.mul(num_panels, width), ir.Constant(INT, LANES), ir.Constant(INT, 0)
        left = builder.sdiv(builder.add(builder.sub(m, done), ir.Constant(INT, LANES - 1)), lanes)
        with cgutils.for_range(builder, left) as rest:
            # The last vector ends with the last point; what it has in common with the one before is skipped.
            column = builder.add(done, builder.mul(rest.index, lanes))
            beyond = builder.sub(builder.add(column, lanes), m)
            beyond = builder.select(builder.icmp_signed(">", beyond, zero), beyond, zero)
            _panel(v, builder.sub(column, beyond), 1, beyond, *shared)
        value = v.sum(builder.load(total))
        with cgutils.for_range(builder, p) as coordinates:
            moment = v.sum(v.load(room.at(builder.mul(coordinates.index, lanes))))
            pull = builder.fmul(builder.load(point.at(coordinates.index)), value)
            builder.store(builder.fsub(moment, pull), gradient.at(coordinates.index))
        return value

    return types.float64(point, points_t, coefficients, room, gradient), instructions
