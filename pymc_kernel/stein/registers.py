"""Sums over coordinates for a few rows and a tile of columns, in the processor's vector registers.

Of a group of rows and a panel of columns all sums stay in registers until the last coordinate is added, so that what is
loaded of a column serves the whole group, and no sum goes through memory: as in a product of matrices. A compiler does
not make this from loops over pairs; these load and store every sum for every few coordinates, and take twice as long.

The number of coordinates is not known to the compiler: the same machine code serves all. Sums are in the order of the
coordinates, and the rest in the standard's arithmetic, whatever the width of the registers: the same numbers come out
on every machine that has fused multiply-add.

Imports the standard library, Numba, llvmlite, which Numba is built on, and ``kernels``.
"""

from itertools import chain, product

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from pymc_kernel.kernels.registers import DOUBLE, INT, Array, Vectors

__all__ = [
    "GAUSSIAN_FORM",
    "GROUP",
    "LARGEST_SQUARE",
    "MATERN_FORM",
    "POWER_FORM",
    "RECIPROCAL_FORM",
    "TILE",
    "add_by_form",
    "add_row_with_root",
    "add_with_root",
    "fill_by_form",
    "fill_scaled_sums",
    "fill_scaled_sums_of_row",
    "fill_sums",
    "fill_sums_of_row",
    "fill_with_root",
]

TILE = 64  # columns, whose coordinates stay in the first cache up to 30 of them; a multiple of every panel's width
GROUP = 4  # rows that share what is loaded of a panel
LARGEST_SQUARE = 1e36  # of a distance, for which the root may begin in single precision


def _lanes_and_vectors(num_rows, num_sums):
    """Return how many numbers a register holds, and how many registers wide a panel is.

    All sums must find room in the registers, of which there are 32, or 16 where a register holds four numbers. A
    single row has room for wider panels, which share what is loaded of the row.
    """
    features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    features = features.split(",")
    lanes = 8 if "+avx512f" in features else 4 if "+avx" in features else 2
    if num_rows == 1:
        return lanes, 4
    return lanes, 1 if lanes == 4 or num_sums > 3 else 2


def _loops(builder, num_rows, first, points, scores, tile, inverse, finish):
    """Write the instructions of both loops, over panels and over coordinates.

    ``finish(v, places)`` is called for each panel, with (column, row, sums) of each of its vectors. The sums are of
    u^2, (b - a) u v and a b, with u = x - y and v the inverse length scale, and of (u v)^2 where there are length
    scales. Rows are those from ``first`` on; where there are none any more, the last one.
    """
    num_sums = 3 if inverse is None else 4
    lanes, vectors = _lanes_and_vectors(num_rows, num_sums)
    v, width = Vectors(builder, lanes), lanes * vectors
    num_points, d = points.shape
    last = builder.sub(num_points, ir.Constant(INT, 1))
    rows = [builder.add(first, ir.Constant(INT, r)) for r in range(num_rows)]
    rows = [builder.mul(builder.select(builder.icmp_signed("<", row, last), row, last), d) for row in rows]
    places = list(product(range(num_rows), range(vectors)))
    sums = {place: [cgutils.alloca_once(builder, v.type) for _ in range(num_sums)] for place in places}
    with cgutils.for_range(builder, ir.Constant(INT, TILE // width)) as panels:
        column = builder.mul(panels.index, ir.Constant(INT, width))
        for total in chain.from_iterable(sums.values()):
            builder.store(v.constant(0.0), total)
        with cgutils.for_range(builder, d) as coordinates:
            k = coordinates.index
            start = builder.add(column, builder.mul(k, ir.Constant(INT, 2 * TILE)))
            y = [v.load(tile.at(start, c * lanes)) for c in range(vectors)]
            b = [v.load(tile.at(start, TILE + c * lanes)) for c in range(vectors)]
            scale = None if inverse is None else v.everywhere(builder.load(inverse.at(k)))
            for r, c in places:
                x = v.everywhere(builder.load(points.at(rows[r], k)))
                a = v.everywhere(builder.load(scores.at(rows[r], k)))
                u, difference = builder.fsub(x, y[c]), builder.fsub(b[c], a)
                scaled = u if scale is None else builder.fmul(u, scale)
                factors = (u, u), (difference, scaled), (a, b[c]), (scaled, scaled)
                for total, (left, right) in zip(sums[r, c], factors, strict=False):
                    builder.store(v.multiply_add(left, right, builder.load(total)), total)
        columns = [builder.add(column, ir.Constant(INT, c * lanes)) for c in range(vectors)]
        finish(v, [(columns[c], r, [builder.load(total) for total in sums[r, c]]) for r, c in places])


def _kernel_with_root(v, trace, square, across, product):
    """Return the Stein kernel of the profile (1 + s)^-1/2 from sums over coordinates.

    With q = 1 / (1 + s) it is q^1/2 (sum a b - q (sum (b - a) u - trace + 3 (1 - q))).
    """
    builder = v.builder
    value = v.inverse_root(builder.fadd(square, v.constant(1.0)))
    power = builder.fmul(value, value)
    across = builder.fadd(across, v.everywhere(builder.fsub(ir.Constant(DOUBLE, 3.0), trace)))
    slope = v.multiply_add(power, v.constant(-3.0), across)
    return builder.fmul(value, v.multiply_add(builder.fneg(power), slope, product))


def _gaussian_kernel(v, b, trace, square, across, product):
    """Return the Stein kernel of the profile exp(-s / 2): exp(-s / 2) (sum a b - sum (b - a) u + trace - s)."""
    builder = v.builder
    rest = builder.fsub(builder.fadd(builder.fsub(product, across), v.everywhere(trace)), square)
    return builder.fmul(v.exponential(builder.fmul(square, v.constant(-0.5))), rest)


def _reciprocal_kernel(v, b, trace, square, across, product):
    """Return the Stein kernel of the profile q = 1 / (1 + s).

    It is q (sum a b - q (2 (sum (b - a) u - trace) + 8 (1 - q))).
    """
    builder = v.builder
    q = builder.fdiv(v.constant(1.0), builder.fadd(square, v.constant(1.0)))
    slope = v.multiply_add(builder.fsub(across, v.everywhere(trace)), v.constant(2.0), v.constant(8.0))
    slope = v.multiply_add(q, v.constant(-8.0), slope)
    return builder.fmul(q, v.multiply_add(builder.fneg(q), slope, product))


def _matern_kernel(v, b, trace, square, across, product):
    """Return the Stein kernel of the profile (1 + r + r^2 / 3) exp(-r), r^2 = 5 s.

    It is exp(-r) ((1 + r + r^2 / 3) sum a b - 5 / 3 (1 + r) (sum (b - a) u - trace) - 25 / 3 s).
    """
    builder = v.builder
    scaled = builder.fmul(square, v.constant(5.0))
    r = v.root(scaled)
    linear = builder.fadd(r, v.constant(1.0))
    value = v.multiply_add(scaled, v.constant(1.0 / 3.0), linear)
    along = builder.fmul(builder.fsub(across, v.everywhere(trace)), builder.fmul(linear, v.constant(-5.0 / 3.0)))
    rest = v.multiply_add(value, product, v.multiply_add(square, v.constant(-25.0 / 3.0), along))
    return builder.fmul(v.exponential(builder.fneg(r)), rest)


def _power_kernel(v, b, trace, square, across, product):
    """Return the Stein kernel of the profile q^b, q = 1 / (1 + s).

    It is q^b (sum a b - q (2 b (sum (b - a) u - trace) + 4 b (b + 1) (1 - q))).
    """
    builder = v.builder
    z, b = builder.fadd(square, v.constant(1.0)), v.everywhere(b)
    q = builder.fdiv(v.constant(1.0), z)
    value = v.exponential(builder.fneg(builder.fmul(b, v.logarithm(z))))
    twice = builder.fadd(b, b)
    change = builder.fmul(builder.fadd(twice, v.constant(2.0)), builder.fsub(v.constant(1.0), q))
    slope = builder.fmul(twice, builder.fadd(builder.fsub(across, v.everywhere(trace)), change))
    return builder.fmul(value, v.multiply_add(builder.fneg(q), slope, product))


#: Profiles whose Stein kernels are made where their sums are, in the registers: number -> instructions.
GAUSSIAN_FORM, RECIPROCAL_FORM, MATERN_FORM, POWER_FORM = 1, 2, 3, 4
_KERNELS = {
    GAUSSIAN_FORM: _gaussian_kernel,
    RECIPROCAL_FORM: _reciprocal_kernel,
    MATERN_FORM: _matern_kernel,
    POWER_FORM: _power_kernel,
}


def _by_form(builder, form, write):
    """Write what ``write(kernel)`` writes for the kernel whose number ``form`` has when it runs."""
    after = builder.append_basic_block("after")
    switch = builder.switch(form, after)
    for number, kernel in _KERNELS.items():
        block = builder.append_basic_block(kernel.__name__)
        switch.add_case(ir.Constant(INT, number), block)
        builder.position_at_end(block)
        write(kernel)
        builder.branch(after)
    builder.position_at_end(after)


def _fill_sums(num_rows, with_scales):
    """Return the function that writes sums of ``num_rows`` rows, compiled where it is called."""

    def fill(typing, first, points, scores, tile, inverse, out):
        def instructions(context, builder, signature, values):
            arrays = [Array(context, builder, *one) for one in zip(signature.args[1:], values[1:], strict=True)]
            points, scores, tile, inverse, out = arrays

            def finish(v, places):
                for column, r, sums in places:
                    for s, total in enumerate(sums):
                        v.store(total, out.at(column, (s * num_rows + r) * TILE))

            _loops(builder, num_rows, values[0], points, scores, tile, inverse if with_scales else None, finish)
            return context.get_dummy_value()

        return types.void(types.int64, points, scores, tile, inverse, out), instructions

    return intrinsic(fill)


def _add(v, places, total, inside, kernel_of):
    """Add the kernel of each place to the total of its columns, of rows that are inside."""
    builder = v.builder
    for column, r, sums in places:
        kernel, place = kernel_of(*sums), total.at(column)
        v.store(builder.fadd(v.load(place), builder.select(inside[r], kernel, v.constant(0.0))), place)


def _inside(builder, first, stop, num_rows):
    return [builder.icmp_signed("<", builder.add(first, ir.Constant(INT, r)), stop) for r in range(num_rows)]


def _add_with_root(num_rows):
    """Return the function that adds the kernel of up to ``num_rows`` rows, compiled where it is called."""

    def add(typing, first, stop, points, scores, tile, trace, total):
        def instructions(context, builder, signature, values):
            first, stop = values[:2]
            points, scores, tile, total = (Array(context, builder, signature.args[k], values[k]) for k in (2, 3, 4, 6))
            inside = _inside(builder, first, stop, num_rows)

            def finish(v, places):
                _add(v, places, total, inside, lambda *sums: _kernel_with_root(v, values[5], *sums))

            _loops(builder, num_rows, first, points, scores, tile, None, finish)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, points, scores, tile, types.float64, total), instructions

    return intrinsic(add)


@intrinsic
def fill_with_root(typing, first, points, scores, tile, trace, out):
    """Write the Stein kernel of the profile (1 + s)^-1/2, of GROUP rows from ``first`` on, to ``out`` (GROUP, TILE)."""

    def instructions(context, builder, signature, values):
        points, scores, tile, out = (Array(context, builder, signature.args[k], values[k]) for k in (1, 2, 3, 5))

        def finish(v, places):
            for column, r, sums in places:
                v.store(_kernel_with_root(v, values[4], *sums), out.at(column, r * TILE))

        _loops(builder, GROUP, values[0], points, scores, tile, None, finish)
        return context.get_dummy_value()

    return types.void(types.int64, points, scores, tile, types.float64, out), instructions


@intrinsic
def fill_by_form(typing, form, b, first, points, scores, tile, trace, out):
    """As :func:`fill_with_root` for the profile whose number ``form`` is; ``b`` is its power, if it is one."""

    def instructions(context, builder, signature, values):
        points, scores, tile, out = (Array(context, builder, signature.args[k], values[k]) for k in (3, 4, 5, 7))

        def finish(v, places):
            def write(kernel):
                for column, r, sums in places:
                    v.store(kernel(v, values[1], values[6], *sums), out.at(column, r * TILE))

            _by_form(builder, values[0], write)

        _loops(builder, GROUP, values[2], points, scores, tile, None, finish)
        return context.get_dummy_value()

    whole, number = types.int64, types.float64
    return types.void(whole, number, whole, points, scores, tile, number, out), instructions


@intrinsic
def add_by_form(typing, form, b, first, stop, points, scores, tile, trace, total):
    """As :data:`add_with_root` for the profile whose number ``form`` is; ``b`` is its power, if it is one."""

    def instructions(context, builder, signature, values):
        first, stop = values[2:4]
        points, scores, tile, total = (Array(context, builder, signature.args[k], values[k]) for k in (4, 5, 6, 8))
        inside = _inside(builder, first, stop, GROUP)

        def finish(v, places):
            def write(kernel):
                _add(v, places, total, inside, lambda *sums: kernel(v, values[1], values[7], *sums))

            _by_form(builder, values[0], write)

        _loops(builder, GROUP, first, points, scores, tile, None, finish)
        return context.get_dummy_value()

    whole, number = types.int64, types.float64
    return types.void(whole, number, whole, whole, points, scores, tile, number, total), instructions


#: ``fill_sums(first, points, scores, tile, inverse, out)`` writes the sums of GROUP rows from ``first`` on with TILE
#: columns: of u^2, (b - a) u and a b, ``out`` (4, GROUP, TILE). There is no length scale, and ``inverse`` not used.
fill_sums = _fill_sums(GROUP, False)
#: As :data:`fill_sums` with inverse length scales (d,): of u^2, (b - a) u v, a b and (u v)^2.
fill_scaled_sums = _fill_sums(GROUP, True)
#: As :data:`fill_sums` and :data:`fill_scaled_sums` for a single row, ``out`` (4, 1, TILE).
fill_sums_of_row = _fill_sums(1, False)
fill_scaled_sums_of_row = _fill_sums(1, True)
#: ``add_with_root(first, stop, points, scores, tile, trace, total)`` adds the Stein kernel of the profile (1 + s)^-1/2
#: to ``total`` (TILE,), for GROUP rows from ``first`` on, but only those before ``stop``.
add_with_root = _add_with_root(GROUP)
#: As :data:`add_with_root` for a single row.
add_row_with_root = _add_with_root(1)
