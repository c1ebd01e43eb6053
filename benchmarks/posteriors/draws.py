"""Independent exact draws of most of the zoo's posteriors: conjugate, by a grid over one parameter, or by rejection.

Each function takes a generator and a number and returns the free variables of its model, name -> (n, ...).
"""

from functools import cache, partial

import numpy as np
from scipy import stats

from benchmarks.posteriors import own, posteriordb

_GRID = 20_001
_NUM_CANDIDATES = 200_000  # of rejection at a time


def from_grid(rng, x, log_density, n):
    """Return draws (n,) of a density on an even grid, by the inverse of its piecewise linear distribution function."""
    density = np.exp(log_density - log_density.max())
    below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    keep = np.concatenate([[True], np.diff(below) > 0.0])
    return np.interp(rng.random(n) * below[-1], below[keep], x[keep])


def by_rejection(rng, propose, log_ratio, log_bound, n):
    """Return n of the proposals (., d), each kept with probability exp(log_ratio - log_bound)."""
    found, size = [], 0
    while size < n:
        candidates = propose(rng, _NUM_CANDIDATES)
        kept = candidates[np.log(rng.random(len(candidates))) < log_ratio(candidates) - log_bound]
        found.append(kept)
        size += len(kept)
    return np.concatenate(found)[:n]


# -- posteriordb ---------------------------------------------------------------------------------------


def linear_model_draws(make, coefficients, prior_sd, log_prior_of_sigma, rng, n):
    """Return draws of y ~ N(X b, sigma^2), b ~ N(0, prior_sd^2): b given sigma is normal, sigma is from a grid.

    The design is read from the model's mean, which is linear; ``log_prior_of_sigma`` up to a constant.
    """
    model = make()
    y_variable = model["y"]
    y = model.rvs_to_values[y_variable].data
    mean = y_variable.owner.op.dist_params(y_variable.owner)[0]
    variables = [model[name] for name in coefficients]
    shapes = [tuple(model.eval_rv_shapes()[name]) for name in coefficients]
    sizes = [int(np.prod(s)) for s in shapes]
    edges = np.cumsum(sizes)[:-1]

    def mean_at(b):
        parts = np.split(b, edges)
        at = {v: p.reshape(s) for v, p, s in zip(variables, parts, shapes, strict=True)}
        return mean.eval(at, mode="FAST_COMPILE")

    design = np.stack([mean_at(unit) for unit in np.eye(sum(sizes))], axis=1)
    precision = 0.0 if prior_sd is None else prior_sd**-2.0
    eigenvalues, vectors = np.linalg.eigh(design.T @ design)
    pulled = vectors.T @ (design.T @ y)
    residual = np.sqrt(((y - design @ np.linalg.lstsq(design, y)[0]) ** 2).mean())
    s = np.log(residual) + np.linspace(-2.0, 2.0, _GRID)
    variance = np.exp(2.0 * s)[:, None]
    given = eigenvalues / variance + precision
    quadratic = (y @ y - (pulled**2 / variance / given).sum(axis=1)) / variance[:, 0]
    log_density = log_prior_of_sigma(np.exp(s)) + s - y.size * s - 0.5 * np.log(given).sum(axis=1) - 0.5 * quadratic
    sigma = np.exp(from_grid(rng, s, log_density, n))
    variance = sigma[:, None] ** 2
    given = eigenvalues / variance + precision
    b = (pulled / variance / given + rng.standard_normal(given.shape) / np.sqrt(given)) @ vectors.T
    parts = np.split(b, edges, axis=1)
    found = {name: p.reshape(n, *s) for name, p, s in zip(coefficients, parts, shapes, strict=True)}
    return found | {"sigma": sigma}


def _flat(sigma):
    return np.zeros_like(sigma)


def _half_cauchy(sigma):
    return -np.log1p((sigma / 2.5) ** 2)


def _half_normal(sigma):
    return -0.5 * (sigma / 10.0) ** 2


def eight_schools(rng, n):
    """Return log tau from its density on a grid, the mean given it, the effects given both."""
    data = posteriordb.data_of("eight_schools")
    y, variance = data["y"].astype(float), data["sigma"].astype(float) ** 2

    def mean_given(log_tau):
        total = variance + np.exp(2.0 * log_tau)[:, None]
        precision = (1.0 / total).sum(axis=1) + 1.0 / 25.0
        return total, precision, (y / total).sum(axis=1) / precision

    grid = np.linspace(-12.0, 8.0, _GRID)
    total, precision, mean = mean_given(grid)
    log_density = -0.5 * (np.log(total) + y**2 / total).sum(axis=1) + 0.5 * mean**2 * precision
    log_density += grid - 0.5 * np.log(precision) - np.log1p(np.exp(2.0 * grid) / 25.0)
    log_tau = from_grid(rng, grid, log_density, n)
    _, precision, mean = mean_given(log_tau)
    mu, tau = mean + rng.standard_normal(n) / np.sqrt(precision), np.exp(log_tau)
    given = 1.0 + tau[:, None] ** 2 / variance
    raw = tau[:, None] * (y - mu[:, None]) / variance / given + rng.standard_normal((n, 8)) / np.sqrt(given)
    return {"theta_trans": raw, "mu": mu, "tau": tau}


# -- our own -------------------------------------------------------------------------------------------


def counts(rng, n):
    """Conjugate."""
    return {"p": rng.beta(14, 8, n), "rate": rng.gamma(2 + own.COUNTS.sum(), 1 / (0.2 + own.COUNTS.size), n)}


def walls(rng, n):
    """Return Beta's distribution, and a grid over the log of the scale."""
    s = np.linspace(-25.0, 2.2, _GRID)
    variance = 0.01 + np.exp(2.0 * s)
    log_density = s - 0.5 * np.exp(2.0 * s) - 0.5 * np.log(variance) - 0.5 * 0.05**2 / variance
    return {"p": rng.beta(21, 1, n), "scale": np.exp(from_grid(rng, s, log_density, n))}


def simplex(rng, n):
    """Conjugate."""
    return {"share": rng.dirichlet(1.0 + own.CATEGORIES, n)}


def correlations(rng, n):
    """Return rejection of canonical partial correlations, the variables' scatter matrix in the exponent."""
    scatter, size = own.LATENT_PAIRS.T @ own.LATENT_PAIRS, len(own.LATENT_PAIRS)

    def factor_of(z):
        a, b, c = z.T  # correlations of the first with the second and the third, partial one of these two
        rest = np.sqrt((1.0 - b**2) * (1.0 - c**2))
        zero, one = np.zeros_like(a), np.ones_like(a)
        rows = [[one, zero, zero], [a, np.sqrt(1.0 - a**2), zero], [b, c * np.sqrt(1.0 - b**2), rest]]
        return np.moveaxis(np.array(rows), -1, 0)

    def log_density(z):
        log_det = np.log1p(-(z**2)).sum(axis=1)
        jacobian = 0.5 * np.log1p(-(z[:, :2] ** 2)).sum(axis=1)
        scaled = np.linalg.solve(factor_of(z), np.linalg.cholesky(scatter)[None])
        return (2.0 - 1.0 - 0.5 * size) * log_det + jacobian - 0.5 * (scaled**2).sum(axis=(1, 2))

    def propose(rng, count):
        return rng.uniform(-1.0, 1.0, (count, 3))

    x = np.linspace(-0.99, 0.99, 60)
    grid = np.stack(np.meshgrid(x, x, x), axis=-1).reshape(-1, 3)
    bound = log_density(grid).max() + 0.1  # above all of the finest grid that was tried
    return {"factor": factor_of(by_rejection(rng, propose, log_density, bound, n))}


def cutpoints(rng, n):
    """Return draws from the prior, kept with the likelihood over its maximum."""
    marks = own.MARKS

    def propose(rng, count):
        return np.sort(2.0 * rng.standard_normal((count, 2)), axis=1)

    def log_likelihood(cut):
        low, high = 1.0 / (1.0 + np.exp(-cut.T))
        with np.errstate(divide="ignore"):
            return marks @ np.log([low, high - low, 1.0 - high])

    return {"cut": by_rejection(rng, propose, log_likelihood, marks @ np.log(marks / marks.sum()), n)}


def two_modes(rng, n):
    """Return a grid."""
    x = np.linspace(-8.0, 8.0, _GRID)
    return {"x": from_grid(rng, x, -0.125 * (x - 0.924) ** 2 - 0.5 * (9.0 - x**2) ** 2, n)}


def funnel(rng, n):
    """Return a grid over the log variance; given it the effects are normal."""
    y, v = own.EFFECTS, np.linspace(-25.0, 20.0, _GRID)
    total = 1.0 + np.exp(v)[:, None]
    log_density = -(v**2) / 18.0 - 0.5 * (np.log(total) + y**2 / total).sum(axis=1)
    v = from_grid(rng, v, log_density, n)
    share = 1.0 / (1.0 + np.exp(-v))[:, None]
    return {"log_variance": v, "effect": share * y + np.sqrt(share) * rng.standard_normal((n, y.size))}


def heavy_tails(rng, n):
    """Conjugate; the Cauchy place by a grid over its angle."""
    variance = stats.invgamma(1.5, scale=1.0 + 0.5 * 1.2**2 / 11.0).rvs(n, random_state=rng)
    share = 10.0 / 11.0
    mean = share * 1.2 + np.sqrt(share * variance) * rng.standard_normal(n)
    angle = np.linspace(-0.5 * np.pi, 0.5 * np.pi, _GRID + 2)[1:-1]
    place = np.tan(from_grid(rng, angle, -np.log1p((np.tan(angle) - 2.5) ** 2), n))
    return {"variance": variance, "mean": mean, "place": place}


def constant_likelihood(rng, n):
    """Return the prior."""
    return {"x": rng.normal(2.0, 3.0, n), "wait": rng.exponential(2.0, n), "p": rng.beta(2.0, 5.0, n)}


def _gaussian(rng, design, y, noise_sds, n):
    scaled = design / noise_sds[:, None]
    factor = np.linalg.cholesky(np.eye(design.shape[1]) + scaled.T @ scaled)
    mean = np.linalg.solve(factor.T, np.linalg.solve(factor, scaled.T @ (y / noise_sds)))
    return mean + np.linalg.solve(factor.T, rng.standard_normal((design.shape[1], n))).T


def scales(rng, n):
    """Conjugate."""
    x = _gaussian(rng, np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.2, 0.5]), np.array([1.0, 0.3]), n)
    return {"small": 1e-6 * x[:, 0], "large": 1e6 * x[:, 1]}


def one_observation(rng, n):
    """Return a grid over the log of the standard deviation; given it the mean is normal."""
    s = np.linspace(-18.0, 2.2, _GRID)
    variance = np.exp(2.0 * s)
    log_density = s - 0.5 * variance - 0.5 * np.log1p(variance) - 0.5 * 1.5**2 / (1.0 + variance)
    s = from_grid(rng, s, log_density, n)
    share = 1.0 / (1.0 + np.exp(2.0 * s))
    return {"mu": 1.5 * share + np.sqrt(1.0 - share) * rng.standard_normal(n), "sigma": np.exp(s)}


def thirty(rng, n):
    """Conjugate."""
    design, y = own.thirty_data()
    return {"x": _gaussian(rng, design, y, np.full(y.size, 0.5), n)}


_linear = partial(partial, linear_model_draws)
EXACT_DRAWS = {
    "arK": _linear(posteriordb.autoregression, ("alpha", "beta"), 10.0, _half_cauchy),
    "earnings": _linear(posteriordb.earnings, ("beta",), None, _flat),
    "eight_schools": eight_schools,
    "kidiq": _linear(posteriordb.kid_scores, ("beta",), None, _half_cauchy),
    "mesquite": _linear(posteriordb.mesquite, ("beta",), None, _flat),
    "nes1976": _linear(posteriordb.party, ("beta",), None, _flat),
    "sblrc": _linear(posteriordb.linear_regression, ("beta",), 10.0, _half_normal),
} | {name: globals()[name] for name in own.MODELS if name in globals()}


# -- posteriordb's own draws ---------------------------------------------------------------------------


@cache
def reference_draws(name, folder):
    """Return posteriordb's reference draws of the free variables, name -> (n, ...); None where there are none.

    ``folder`` holds files ``NAME.draws.npz`` with ``names`` and ``draws`` (n, parameters).
    """
    files = list(folder.glob(f"{name}-*.draws.npz"))
    if not files:
        return None
    with np.load(files[0]) as stored:
        columns = dict(zip(stored["names"].tolist(), stored["draws"].T, strict=True))
    found = {}
    for variable in dict.fromkeys(c.split("[")[0] for c in columns):
        parts = [v for c, v in columns.items() if c.split("[")[0] == variable]
        found[variable] = np.stack(parts, axis=1) if f"{variable}[1]" in columns else parts[0]
    if name == "eight_schools":
        found["theta_trans"] = (found.pop("theta") - found["mu"][:, None]) / found["tau"][:, None]
    if name == "gp_pois_regr":
        x = posteriordb.data_of(name)["x"].astype(float)
        squared = np.subtract.outer(x, x) ** 2
        alpha, rho = found["alpha"][:, None, None], found["rho"][:, None, None]
        factor = np.linalg.cholesky(alpha**2 * np.exp(-0.5 * squared / rho**2) + 1e-10 * np.eye(x.size))
        found["f_tilde"] = np.linalg.solve(factor, found.pop("f")[:, :, None])[:, :, 0]
    return found
