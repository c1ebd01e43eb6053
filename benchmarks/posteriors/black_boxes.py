"""Compiled functions without a gradient, as operators of a model: differential equations and a forward algorithm."""

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

_STEPS_A_YEAR = 40
_STEPS_A_DAY = 40
_CEILING = 50.0  # of the logarithms of numbers, so that their exponentials stay finite
_FINER_AT_FIRST = 5
_MOST_STEPS = 4_000  # between two times; a rate that needs more has a likelihood of zero for all that is known here
_STABLE = 0.5  # largest product of rate and step; Runge and Kutta's method is stable below 2.8


@numba.njit(cache=True, error_model="numpy")
def lotka_volterra(rates, start, times, steps_a_year=_STEPS_A_YEAR):
    """Solve u' = (a - b v) u, v' = (-c + d u) v in log u and log v, by Runge and Kutta's method of fourth order."""
    a, b, c, d = rates
    solution = np.empty((times.size, 2))
    x, y, now = np.log(start[0]), np.log(start[1]), 0.0
    for i in range(times.size):
        num_steps = int(np.ceil((times[i] - now) * steps_a_year))
        h = (times[i] - now) / num_steps
        for _ in range(num_steps):
            u, v, rise, fall = x, y, 0.0, 0.0
            for ahead, weight in ((0.5, 1.0), (0.5, 2.0), (1.0, 2.0), (0.0, 1.0)):
                slope_x, slope_y = a - b * np.exp(min(v, _CEILING)), d * np.exp(min(u, _CEILING)) - c
                rise, fall = rise + weight * slope_x, fall + weight * slope_y
                u, v = x + ahead * h * slope_x, y + ahead * h * slope_y
            x, y = x + h / 6.0 * rise, y + h / 6.0 * fall
        solution[i, 0], solution[i, 1], now = x, y, times[i]
    return solution


@numba.njit(cache=True, error_model="numpy")
def _absorbed_and_eliminated(parameters, dosing, times):
    """Solve C' = D k exp(-k t) / V - V_m C / (V (K_m + C)) from C(0) = 0; the log of C, NaN where that fails."""
    rate, half, fastest = parameters
    dose, volume = dosing
    solution = np.full(times.size, np.nan)
    level, now = 0.0, 0.0
    speed = max(fastest / (volume * half), rate)
    for i in range(times.size):
        gap = times[i] - now
        needed = max(gap * _STEPS_A_DAY, gap * speed / _STABLE)
        if not needed < _MOST_STEPS:
            return solution
        # The first steps are the shortest: there the level rises through the bend of the rate of elimination.
        num_steps = int(np.ceil(_FINER_AT_FIRST * needed if i == 0 else needed))
        power = 3 if i == 0 else 1
        for s in range(num_steps):
            t = now + gap * (s / num_steps) ** power
            h = now + gap * ((s + 1) / num_steps) ** power - t
            flow0 = dose * rate / volume * np.exp(-rate * t)
            flow1 = flow0 * np.exp(-0.5 * rate * h)
            flow2 = flow1 * np.exp(-0.5 * rate * h)
            k1 = flow0 - fastest / volume * level / (half + level)
            k2 = flow1 - fastest / volume * (level + 0.5 * h * k1) / (half + level + 0.5 * h * k1)
            k3 = flow1 - fastest / volume * (level + 0.5 * h * k2) / (half + level + 0.5 * h * k2)
            k4 = flow2 - fastest / volume * (level + h * k3) / (half + level + h * k3)
            level += h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        now = times[i]
        if not level > 0.0:
            return solution
        solution[i] = np.log(level)
    return solution


@numba.njit(cache=True, error_model="numpy")
def _forward(log_emission, transition):
    """Return the log likelihood of a hidden Markov chain, the first state unweighted: (n, k) emissions, (k, k)."""
    n, k = log_emission.shape
    share, ahead = np.ones(k), np.empty(k)
    total = 0.0
    for t in range(n):
        if t > 0:
            for j in range(k):
                ahead[j] = 0.0
                for i in range(k):
                    ahead[j] += share[i] * transition[i, j]
            share[:] = ahead
        largest = log_emission[t].max()
        mass = 0.0
        for j in range(k):
            share[j] *= np.exp(log_emission[t, j] - largest)
            mass += share[j]
        total += largest + np.log(mass)
        share /= mass
    return np.asarray(total)


_FUNCTIONS = {
    # name: function, signature for broadcasting, the input (and its axes) whose shape the output has, its last axes
    "lotka_volterra": (lotka_volterra, "(p),(s),(n)->(n,s)", lambda shapes: (shapes[2][0], 2)),
    "concentration": (_absorbed_and_eliminated, "(p),(q),(n)->(n)", lambda shapes: (shapes[2][0],)),
    "forward": (_forward, "(n,k),(k,k)->()", lambda shapes: ()),
}
_NUM_DIMS = {"lotka_volterra": 2, "concentration": 1, "forward": 0}


class BlackBox(Op):
    """A compiled function of arrays as an operator: no gradient, like a program that somebody else wrote."""

    __props__ = ("name",)

    def __init__(self, name):
        self.name = name
        self.function, self.gufunc_signature, self.output_shape = _FUNCTIONS[name]

    def make_node(self, *inputs):
        """Return the application."""
        inputs = [pt.as_tensor_variable(i, dtype="float64") for i in inputs]
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=(None,) * _NUM_DIMS[self.name])])

    def infer_shape(self, node, shapes):
        """Return the shape of the output."""
        return [self.output_shape(shapes)]

    def perform(self, node, inputs, outputs):
        """Call the function."""
        outputs[0][0] = np.asarray(self.function(*[np.ascontiguousarray(i) for i in inputs]))


@register_funcify_default_op_cache_key(BlackBox)
def _in_numba(op, node, **kwargs):
    return op.function


def hares_and_lynx(rates, start, times):
    """Return the log numbers of hares and of lynx (n, 2) at ``times`` (n,)."""
    return BlackBox("lotka_volterra")(rates, start, times)


def concentration(absorption, half, fastest, dose, volume, times):
    """Return the log concentration of a drug (n,) with Michaelis and Menten's elimination."""
    return BlackBox("concentration")(pt.stack([absorption, half, fastest]), np.array([dose, volume]), times)


def forward_log_likelihood(log_emission, transition):
    """Return the log likelihood of a hidden Markov chain whose first state has weight one, whichever it is."""
    return BlackBox("forward")(log_emission, transition)
