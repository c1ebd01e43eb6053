"""Forty models with black boxes, as people who did not know how ``pk.emulate`` works would write them."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

SCALAR, VECTOR, MATRIX = pt.dscalar, pt.dvector, pt.dmatrix
MODELS: dict[str, tuple[Callable, bool]] = {}  # by name; whether NUTS may miss a mode of theirs


def listed(by_smc=False):
    """Put a model among MODELS: a function that takes a decorator for what may be a black box."""

    def put(function):
        MODELS[function.__name__] = function, by_smc
        return function

    return put


def made(name, is_known):
    """Return a model, with gradients where ``is_known``, else with black boxes."""

    def black_box(inputs, outputs):
        def decorated(function):
            if is_known:
                return lambda *values: function(pt, *[pt.as_tensor(v) for v in values])
            return wrap_py(inputs, outputs)(lambda *values: np.asarray(function(np, *values), dtype=float))

        return decorated

    return MODELS[name][0](black_box)


TIMES = np.linspace(0.5, 10, 12)


@listed()
def dose_response(black_box):
    """A saturating response to a dose, two inputs."""
    c = np.geomspace(0.1, 30, 10)

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] * c / (v[1] + c)

    y = 5 * c / (2 + c) + 0.3 * np.random.default_rng(1).standard_normal(10)
    with pm.Model() as model:
        v = pm.LogNormal("v", [1.5, 0.5], 1.0, shape=2)
        s = pm.HalfNormal("s", 1.0)
        pm.Normal("y", f(v), s, observed=y)
    return model


@listed(by_smc=True)
def periodic(black_box):
    """A frequency, with several modes."""
    t = np.arange(6.0)

    @black_box([SCALAR], [VECTOR])
    def f(lib, w):
        return lib.sin(w * t)

    y = np.sin(1.3 * t) + 0.7 * np.random.default_rng(2).standard_normal(6)
    with pm.Model() as model:
        w = pm.Uniform("w", 0, 9)
        pm.Normal("y", f(w), 0.7, observed=y)
    return model


@listed(by_smc=True)
def labels(black_box):
    """Two rates that may change places."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, k):
        return lib.exp(-k[0] * TIMES) + lib.exp(-k[1] * TIMES)

    y = np.exp(-0.2 * TIMES) + np.exp(-1.0 * TIMES) + 0.05 * np.random.default_rng(3).standard_normal(12)
    with pm.Model() as model:
        k = pm.LogNormal("k", -1, 1, shape=2)
        pm.Normal("y", f(k), 0.05, observed=y)
    return model


@listed(by_smc=True)
def sign(black_box):
    """An output that is even in its input: two modes."""

    @black_box([SCALAR], [VECTOR])
    def f(lib, a):
        return a**2 * np.array([1.0, 2.0, 3.0])

    with pm.Model() as model:
        a = pm.Normal("a", 1, 2)
        pm.Normal("y", f(a), 1.0, observed=[3.5, 9.0, 11.0])
    return model


@listed()
def threshold(black_box):
    """A kink where a threshold is."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.maximum(0.0, v[0] * (TIMES - v[1]))

    y = np.maximum(0, 1.5 * (TIMES - 4)) + 0.5 * np.random.default_rng(5).standard_normal(12)
    with pm.Model() as model:
        v = pm.Normal("v", [1, 5], [1, 3], shape=2)
        s = pm.HalfNormal("s", 1)
        pm.Normal("y", f(v), s, observed=y)
    return model


@listed(by_smc=True)
def jumps(black_box):
    """Jumps: a floor of a time over the input."""

    @black_box([SCALAR], [VECTOR])
    def f(lib, d):
        return lib.floor(TIMES / d)

    y = np.floor(TIMES / 2.2)
    with pm.Model() as model:
        d = pm.LogNormal("d", 1, 0.5)
        pm.Normal("y", f(d), 0.7, observed=y)
    return model


@listed()
def precise(black_box):
    """A posterior of a thousandth of the prior, in odd units."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return 1e6 * v[0] * 1e6 * lib.exp(-v[1] * TIMES)

    y = 1e6 * 3 * np.exp(-0.3 * TIMES) + 1e3 * np.random.default_rng(7).standard_normal(12)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1e-5)
        b = pm.Normal("b", 1, 1)
        pm.Normal("y", f(pt.stack([a, b])), 1e3, observed=y)
    return model


@listed()
def uninformed(black_box):
    """Three of four inputs of which the data say nothing."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] + 0.01 * lib.sin(v[1]) * TIMES + 0.01 * v[2] * v[3]

    with pm.Model() as model:
        v = pm.Normal("v", 0, 3, shape=4)
        pm.Normal("y", f(v), 2.0, observed=np.random.default_rng(8).normal(1, 2, 12))
    return model


@listed()
def sigmoid(black_box):
    """A steep step."""
    x = np.linspace(-2, 2, 40)

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return 1 / (1 + lib.exp(-25 * (x - v[0]) * lib.exp(v[1])))

    p = 1 / (1 + np.exp(-25 * (x - 0.3)))
    with pm.Model() as model:
        v = pm.Normal("v", 0, 1, shape=2)
        pm.Bernoulli(
            "y", p=pt.clip(f(v), 1e-4, 1 - 1e-4), observed=np.random.default_rng(9).binomial(1, np.clip(p, 0.02, 0.98))
        )
    return model


@listed()
def queue(black_box):
    """A queue that has no answer in a part of the prior."""
    n = np.array([1.0, 2, 3])

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        w = n / (v[1] - v[0])
        return lib.where(v[1] > v[0], w, np.nan)

    with pm.Model() as model:
        v = pm.LogNormal("v", [0, 0.5], 0.5, shape=2)
        w = f(v)
        pm.LogNormal("y", pt.log(w), 0.4, observed=[0.9, 2.2, 2.7])
    return model


@listed()
def potential(black_box):
    """A black box of one number inside of a potential."""

    @black_box([VECTOR], [SCALAR])
    def f(lib, v):
        return v[0] ** 2 + 0.5 * v[0] * v[1] - v[1]

    with pm.Model() as model:
        v = pm.Normal("v", 0, 1, shape=2)
        pm.Potential("p", -2 * (f(v) - 1.0) ** 2)
    return model


@listed()
def custom_distribution(black_box):
    """In the log density of an observed custom distribution."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] * lib.exp(-v[1] * TIMES)

    y = 4 * np.exp(-0.25 * TIMES) + 0.2 * np.random.default_rng(12).standard_normal(12)

    def logp(value, v, s):
        return pm.logp(pm.StudentT.dist(nu=4, mu=f(v), sigma=s), value)

    with pm.Model() as model:
        v = pm.LogNormal("v", [1.0, -1], 0.7, shape=2)
        s = pm.HalfNormal("s", 1)
        pm.CustomDist("y", v, s, logp=logp, observed=y)
    return model


@listed()
def chain(black_box):
    """Two black boxes, one behind the other."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.stack([lib.exp(v[0]), v[0] * v[1]])

    @black_box([VECTOR], [VECTOR])
    def g(lib, u):
        return u[0] * lib.cos(0.3 * TIMES) + u[1] * TIMES / 5

    y = np.exp(0.5) * np.cos(0.3 * TIMES) + 0.4 * TIMES / 5 + 0.3 * np.random.default_rng(13).standard_normal(12)
    with pm.Model() as model:
        v = pm.Normal("v", 0, 1, shape=2)
        s = pm.HalfNormal("s", 1)
        pm.Normal("y", g(f(v)), s, observed=y)
    return model


@listed()
def vector_of_data(black_box):
    """Two scalars and a vector of data as inputs."""

    @black_box([SCALAR, SCALAR, VECTOR], [VECTOR])
    def f(lib, a, b, t):
        return a * lib.tanh(b * t)

    y = 3 * np.tanh(0.4 * TIMES) + 0.2 * np.random.default_rng(14).standard_normal(12)
    with pm.Model() as model:
        t = pm.Data("t", TIMES)
        a = pm.Normal("a", 0, 3)
        b = pm.HalfNormal("b", 1)
        pm.Normal("y", f(a, b, t), 0.2, observed=y)
    return model


def _hierarchy(black_box, is_centred, num_groups):
    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.exp(v[0]) * lib.exp(-lib.exp(v[1]) * TIMES)

    r = np.random.default_rng(15)
    th = np.array([1.0, -1.2]) + 0.4 * r.standard_normal((num_groups, 2))
    y = np.stack([np.exp(a) * np.exp(-np.exp(b) * TIMES) for a, b in th]) + 0.15 * r.standard_normal((num_groups, 12))
    with pm.Model() as model:
        mu = pm.Normal("mu", [0, -1], 1, shape=2)
        tau = pm.HalfNormal("tau", 0.7, shape=2)
        s = pm.HalfNormal("s", 1)
        if is_centred:
            z = pm.Normal("z", mu, tau, shape=(num_groups, 2))
            own = z
        else:
            z = pm.Normal("z", 0, 1, shape=(num_groups, 2))
            own = mu + tau * z
        pm.Normal("y", pt.stack([f(own[i]) for i in range(num_groups)]), s, observed=y)
    return model


@listed()
def eight_groups(black_box):
    """Eight groups, centred."""
    return _hierarchy(black_box, True, 8)


@listed()
def twelve_groups(black_box):
    """Twelve groups, not centred: 28 parameters."""
    return _hierarchy(black_box, False, 12)


@listed()
def two_groups(black_box):
    """Two groups."""
    return _hierarchy(black_box, False, 2)


@listed()
def rows_of_matrix(black_box):
    """One call with a matrix, a scalar for each of its rows."""

    @black_box([MATRIX], [VECTOR])
    def f(lib, v):
        return v[:, 0] * lib.tanh(v[:, 1])

    r = np.random.default_rng(18)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        z = pm.Normal("z", 0, 1, shape=(20, 2))
        pm.Normal("y", f(mu + 0.7 * z), 0.3, observed=r.normal(0.6, 0.5, 20))
    return model


@listed()
def epidemic(black_box):
    """An epidemic in days, with counts."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        s, i, out = 0.999, 0.001, []
        for _ in range(15):
            n = s * (1 - lib.exp(-v[0] * i))
            s = s - n
            i = i + n - v[1] * i
            out.append(1000 * n)
        return lib.stack(out)

    lam = f_np(np.array([1.3, 0.5]))
    with pm.Model() as model:
        v = pm.LogNormal("v", [0, -1], 0.5, shape=2)
        a = pm.Exponential("a", 0.2)
        pm.NegativeBinomial(
            "y", mu=pt.maximum(f(v), 1e-6), alpha=1 / a, observed=np.random.default_rng(19).poisson(lam)
        )
    return model


def f_np(v):
    s, i, out = 0.999, 0.001, []
    for _ in range(15):
        n = s * (1 - np.exp(-v[0] * i))
        s -= n
        i += n - v[1] * i
        out.append(1000 * n)
    return np.array(out)


@listed()
def censored(black_box):
    """Observations that are censored."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] + v[1] * lib.sqrt(TIMES)

    y = np.minimum(1 + 2 * np.sqrt(TIMES) + 0.6 * np.random.default_rng(20).standard_normal(12), 5.5)
    with pm.Model() as model:
        v = pm.Normal("v", 0, 3, shape=2)
        s = pm.HalfNormal("s", 1)
        pm.Censored("y", pm.Normal.dist(f(v), s), lower=None, upper=5.5, observed=y)
    return model


@listed()
def outliers(black_box):
    """Errors with heavy tails."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] * lib.exp(-0.5 * ((TIMES - v[1]) / v[2]) ** 2)

    y = 6 * np.exp(-0.5 * ((TIMES - 5) / 1.5) ** 2) + 0.3 * np.random.default_rng(21).standard_normal(12)
    y[[1, 8]] += [5, -4]
    with pm.Model() as model:
        a = pm.HalfNormal("a", 8)
        b = pm.Normal("b", 5, 3)
        c = pm.HalfNormal("c", 3)
        s = pm.HalfNormal("s", 1)
        pm.StudentT("y", nu=2, mu=f(pt.stack([a, b, c])), sigma=s, observed=y)
    return model


@listed()
def mean_and_sd(black_box):
    """A black box that returns means and standard deviations."""

    @black_box([VECTOR], [MATRIX])
    def f(lib, v):
        return lib.stack([v[0] + v[1] * TIMES, lib.exp(v[2] + v[3] * TIMES)])

    y = 1 + 0.5 * TIMES + np.exp(-1 + 0.15 * TIMES) * np.random.default_rng(22).standard_normal(12)
    with pm.Model() as model:
        v = pm.Normal("v", 0, [2, 1, 1, 0.2], shape=4)
        o = f(v)
        pm.Normal("y", o[0], o[1], observed=y)
    return model


@listed()
def dirichlet(black_box):
    """Shares of a mixture as inputs."""
    A = np.random.default_rng(23).uniform(0, 1, (6, 4))

    @black_box([VECTOR], [VECTOR])
    def f(lib, w):
        return lib.log(A @ w if lib is np else pt.dot(A, w))

    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(4))
        s = pm.HalfNormal("s", 0.3)
        pm.Normal(
            "y",
            f(w),
            s,
            observed=np.log(A @ [0.5, 0.3, 0.15, 0.05]) + 0.1 * np.random.default_rng(3).standard_normal(6),
        )
    return model


@listed()
def sensitivity(black_box):
    """Sensitivity of a test."""
    n = np.array([50, 60, 70])

    @black_box([SCALAR, SCALAR], [VECTOR])
    def f(lib, p, q):
        return lib.stack([p * q, 1 - (1 - p) * (1 - q), p * p])

    with pm.Model() as model:
        p = pm.Beta("p", 1, 3)
        q = pm.Beta("q", 2, 2)
        pm.Binomial("y", n=n, p=f(p, q), observed=[3, 35, 4])
    return model


@listed()
def correlated(black_box):
    """Groups with correlated effects."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return v[0] + v[1] * TIMES + 0.1 * v[2] * TIMES**2

    J = 5
    r = np.random.default_rng(25)
    y = np.stack(
        [a + b * TIMES + 0.1 * c * TIMES**2 for a, b, c in r.normal([1, 0.5, -0.3], 0.5, (J, 3))]
    ) + 0.5 * r.standard_normal((J, 12))
    with pm.Model() as model:
        L, _, _ = pm.LKJCholeskyCov("L", n=3, eta=2, sd_dist=pm.HalfNormal.dist(1.0, shape=3), compute_corr=True)
        mu = pm.Normal("mu", 0, 1, shape=3)
        z = pm.Normal("z", 0, 1, shape=(J, 3))
        own = mu + pt.dot(z, L.T)
        pm.Normal("y", pt.stack([f(own[i]) for i in range(J)]), 0.5, observed=y)
    return model


@listed()
def latent_process(black_box):
    """A latent process of fifteen values, an input each."""
    x = np.linspace(0, 1, 15)

    @black_box([MATRIX], [VECTOR])
    def f(lib, g):
        return lib.exp(g[:, 0]) / (1 + lib.exp(g[:, 0])) * 10

    with pm.Model() as model:
        g = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.3)).prior("g", X=x[:, None])
        pm.Poisson("y", f(g[:, None]), observed=np.random.default_rng(26).poisson(5 + 3 * np.sin(6 * x)))
    return model


@listed()
def ten_inputs(black_box):
    """Ten inputs."""
    W = np.random.default_rng(27).standard_normal((10, 15)) / 3

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.tanh(v @ W if lib is np else pt.dot(v, W)) * 3

    y = 3 * np.tanh(np.random.default_rng(1).standard_normal(10) @ W) + 0.3 * np.random.default_rng(2).standard_normal(
        15
    )
    with pm.Model() as model:
        v = pm.Normal("v", 0, 1, shape=10)
        s = pm.HalfNormal("s", 1)
        pm.Normal("y", f(v), s, observed=y)
    return model


@listed(by_smc=True)
def raising(black_box):
    """It raises for some inputs."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        d = v[0] - v[1] * TIMES / 10
        if lib is np:
            if (d < 0).any():
                raise ValueError("negative")
            return np.sqrt(d)
        return pt.where(pt.any(d < 0), 1e6, pt.sqrt(pt.maximum(d, 1e-12)))  # of likelihood zero

    with pm.Model() as model:
        v = pm.Normal("v", 1, 1, shape=2)
        o = f(v)
        pm.Normal(
            "y", o, 0.3, observed=np.sqrt(1.2 - 0.9 * TIMES / 10) + 0.3 * np.random.default_rng(28).standard_normal(12)
        )
    return model


@listed()
def kink_at_mode(black_box):
    """A kink where the mode is."""

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.abs(v[0] - np.array([-1.0, 0, 0.2, 0.5, 1.0])) * v[1]

    with pm.Model() as model:
        v = pm.Normal("v", [0, 1], 1, shape=2)
        pm.Normal("y", f(v), 0.3, observed=[1.2, 0.2, 0.1, 0.3, 0.9])
    return model


@listed()
def odd_scales(black_box):
    """Inputs of a million, outputs of a millionth."""

    @black_box([SCALAR], [VECTOR])
    def f(lib, e):
        return 1e-6 * lib.log1p(e / 1e6) * TIMES

    with pm.Model() as model:
        e = pm.HalfNormal("e", 3e6)
        s = pm.HalfNormal("s", 1e-6)
        pm.Normal(
            "y", f(e), s, observed=1e-6 * np.log1p(2) * TIMES + 5e-7 * np.random.default_rng(30).standard_normal(12)
        )
    return model


@listed()
def saturated(black_box):
    """A likelihood that is flat above a value."""

    @black_box([SCALAR], [SCALAR])
    def f(lib, a):
        return 1 - lib.exp(-lib.exp(a))

    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        pm.Binomial("y", n=20, p=pt.clip(f(a), 1e-9, 1 - 1e-9), observed=20)
    return model


@listed()
def sixty_parameters(black_box):
    """Sixty parameters."""

    @black_box([MATRIX], [MATRIX])
    def f(lib, v):
        return lib.stack([v[:, 0] + v[:, 1] ** 2, v[:, 0] * v[:, 1], lib.exp(0.5 * v[:, 1])], axis=1)

    r = np.random.default_rng(32)
    th = r.normal([1, 0.5], 0.5, (29, 2))
    a, b = th.T
    y = np.stack([a + b**2, a * b, np.exp(0.5 * b)], 1) + 0.2 * r.standard_normal((29, 3))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        z = pm.Normal("z", 0, 1, shape=(29, 2))
        pm.Normal("y", f(mu + 0.5 * z), 0.2, observed=y)
    return model


@listed()
def cauchy_prior(black_box):
    """A prior with heavy tails that the data hardly touch."""

    @black_box([SCALAR], [VECTOR])
    def f(lib, a):
        return lib.arctan(a) * np.ones(3)

    with pm.Model() as model:
        a = pm.StudentT("a", nu=3, mu=0, sigma=3)
        pm.Normal("y", f(a), 0.5, observed=[1.3, 1.6, 1.1])
    return model


@listed(by_smc=True)
def narrow_and_broad(black_box):
    """A narrow peak beside a broad hill."""

    @black_box([VECTOR], [SCALAR])
    def f(lib, v):
        return lib.log(
            0.3 * lib.exp(-0.5 * ((v - 2) ** 2).sum() / 0.1**2) / 0.01
            + 0.7 * lib.exp(-0.5 * ((v + 1) ** 2).sum())
            + 1e-300
        )

    with pm.Model() as model:
        v = pm.Normal("v", 0, 3, shape=2)
        pm.Potential("p", f(v))
    return model


@listed()
def oscillation(black_box):
    """A damped oscillation, four inputs, much data."""
    t = np.linspace(0, 10, 40)

    @black_box([SCALAR, SCALAR, SCALAR, SCALAR], [VECTOR])
    def f(lib, A, g, w, p):
        return A * lib.exp(-g * t) * lib.cos(w * t + p)

    y = 2 * np.exp(-0.2 * t) * np.cos(2 * t + 0.3) + 0.1 * np.random.default_rng(35).standard_normal(40)
    with pm.Model() as model:
        A = pm.HalfNormal("A", 3)
        g = pm.HalfNormal("g", 0.5)
        w = pm.Normal("w", 2, 0.2)
        p = pm.Normal("p", 0, 0.5)
        s = pm.HalfNormal("s", 0.5)
        pm.Normal("y", f(A, g, w, p), s, observed=y)
    return model


@listed()
def product(black_box):
    """A product of which alone the data speak."""

    @black_box([SCALAR, SCALAR], [VECTOR])
    def f(lib, a, b):
        return lib.exp(a + b) * np.array([1.0, 2.0, 4.0])

    with pm.Model() as model:
        a = pm.Normal("a", 0, 3)
        b = pm.Normal("b", 0, 3)
        pm.Poisson("y", f(a, b), observed=[9, 22, 41])
    return model


@listed(by_smc=True)
def changepoint(black_box):
    """A time at which the level changes: jumps."""
    x = np.arange(12.0)

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.where(x < v[0], v[1], v[2])

    with pm.Model() as model:
        c = pm.Uniform("c", 0, 12)
        levels = pm.Normal("l", 0, 3, shape=2)
        pm.Normal(
            "y",
            f(pt.concatenate([c[None], levels])),
            0.7,
            observed=np.r_[np.zeros(7), 1.5 * np.ones(5)] + 0.7 * np.random.default_rng(37).standard_normal(12),
        )
    return model


@listed()
def plateau(black_box):
    """The smaller of two regimes."""
    x = np.linspace(0, 3, 20)

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        return lib.minimum(v[0] * x, v[1]) - v[2]

    y = np.minimum(4 * x, 5) - 0.5 + 0.4 * np.random.default_rng(38).standard_normal(20)
    with pm.Model() as model:
        v = pm.LogNormal("v", [1, 1, -1], 0.7, shape=3)
        s = pm.HalfNormal("s", 1)
        pm.Normal("y", f(v), s, observed=y)
    return model


@listed()
def loop_over_data(black_box):
    """A black box of scalars, called in a loop over data."""
    r = np.random.default_rng(39)
    x = r.normal(size=10)

    @black_box([SCALAR, SCALAR], [SCALAR])
    def f(lib, a, d):
        return lib.sin(a) + d * a

    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1)
        pm.Normal(
            "y",
            pt.stack([b + f(a, pt.as_tensor(float(d))) for d in x]),
            0.5,
            observed=0.5 + np.sin(0.8) + x * 0.8 + 0.5 * r.standard_normal(10),
        )
    return model


@listed()
def volatility(black_box):
    """Volatility by a black box, returns as data."""
    rt = np.random.default_rng(40).standard_normal(60) * 0.02

    @black_box([VECTOR], [VECTOR])
    def f(lib, v):
        h, out = 4e-4, []
        for q in rt:
            out.append(h)
            h = v[0] * 1e-4 + v[1] * q * q + v[2] * h
        return lib.sqrt(lib.stack([o if lib is np else pt.as_tensor(o) for o in out]))

    with pm.Model() as model:
        w = pm.HalfNormal("w", 1)
        ab = pm.Dirichlet("ab", [1.0, 4.0, 1.0])
        pm.Normal("y", 0, f(pt.stack([w, ab[0], ab[1]])), observed=rt)
    return model
