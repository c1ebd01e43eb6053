"""Log densities of the twelve posteriors of posteriordb, up to a constant, by loops and SciPy's solvers.

Written from the Stan programs, statement by statement, in the parameters as Stan has them (no Jacobians).
"""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.stats import cauchy, expon, gamma, lognorm, norm, poisson

__all__ = ["LOG_DENSITIES"]


def _dirichlet(theta, alpha):
    return sum((a - 1.0) * np.log(t) for a, t in zip(alpha, theta, strict=True))


def ar_k(p, d):
    y, order = d["y"], int(d["K"])
    total = norm.logpdf(p["alpha"], 0, 10) + norm.logpdf(p["beta"], 0, 10).sum() + cauchy.logpdf(p["sigma"], 0, 2.5)
    for t in range(order, len(y)):
        mu = p["alpha"] + sum(p["beta"][k] * y[t - 1 - k] for k in range(order))
        total += norm.logpdf(y[t], mu, p["sigma"])
    return total


def _forward(log_emission, rows):
    acc = log_emission[0]
    for emission in log_emission[1:]:
        acc = np.array([np.logaddexp(*(acc + np.log(rows[:, k]))) + emission[k] for k in range(2)])
    return np.logaddexp(*acc)


def bball(p, d):
    total = _dirichlet(p["theta1"], d["alpha"][0]) + _dirichlet(p["theta2"], d["alpha"][1])
    for name in ("phi", "lambda"):
        total += norm.logpdf(p[name][0], 0, 1) + norm.logpdf(p[name][1], 3, 1)
    emission = np.stack(
        [
            expon.logpdf(d["u"], scale=1 / p["phi"][k]) + expon.logpdf(d["v"], scale=1 / p["lambda"][k])
            for k in range(2)
        ],
        axis=1,
    )
    return total + _forward(emission, np.stack([p["theta1"], p["theta2"]]))


def hmm_example(p, d):
    total = norm.logpdf(p["mu"][0], 3, 1) + norm.logpdf(p["mu"][1], 10, 1)
    emission = np.stack([norm.logpdf(d["y"], p["mu"][k], 1) for k in range(2)], axis=1)
    return total + _forward(emission, np.stack([p["theta1"], p["theta2"]]))


def eight_schools(p, d):
    theta = p["theta_trans"] * p["tau"] + p["mu"]
    total = norm.logpdf(p["theta_trans"]).sum() + norm.logpdf(p["mu"], 0, 5) + cauchy.logpdf(p["tau"], 0, 5)
    return total + norm.logpdf(d["y"], theta, d["sigma"]).sum()


def gp_pois_regr(p, d):
    x = d["x"].astype(float)
    covariance = p["alpha"] ** 2 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2 / p["rho"] ** 2) + 1e-10 * np.eye(11)
    f = np.linalg.cholesky(covariance) @ p["f_tilde"]
    total = gamma.logpdf(p["rho"], 25, scale=1 / 4) + norm.logpdf(p["alpha"], 0, 2) + norm.logpdf(p["f_tilde"]).sum()
    return total + poisson.logpmf(d["k"], np.exp(f)).sum()


def lotka_volterra(p, d):
    a, b, c, e = p["theta"]
    found = solve_ivp(
        lambda t, z: [(a - b * z[1]) * z[0], (-c + e * z[0]) * z[1]],
        (0, 20),
        p["z_init"],
        t_eval=d["ts"].astype(float),
        rtol=1e-9,
        atol=1e-9,
    )
    total = norm.logpdf(p["theta"][[0, 2]], 1, 0.5).sum() + norm.logpdf(p["theta"][[1, 3]], 0.05, 0.05).sum()
    total += lognorm.logpdf(p["sigma"], 1, scale=np.exp(-1)).sum() + lognorm.logpdf(p["z_init"], 1, scale=10).sum()
    for k in range(2):
        total += lognorm.logpdf(d["y_init"][k], p["sigma"][k], scale=p["z_init"][k])
        total += lognorm.logpdf(d["y"][:, k], p["sigma"][k], scale=found.y[k]).sum()
    return total


def one_comp(p, d):
    dose, volume = float(d["D"]), float(d["V"])
    found = solve_ivp(
        lambda t, y: np.exp(-p["k_a"] * t) * dose * p["k_a"] / volume - p["V_m"] / volume * y / (p["K_m"] + y),
        (0, d["times"][-1]),
        [0.0],
        t_eval=d["times"],
        method="LSODA",
        rtol=1e-10,
        atol=1e-10,
    )
    total = sum(cauchy.logpdf(p[name]) for name in ("k_a", "K_m", "V_m", "sigma"))
    return total + lognorm.logpdf(d["C_hat"], p["sigma"], scale=found.y[0]).sum()


def _regression(y, columns, p):
    mu = p["beta"][0] + sum(b * c for b, c in zip(p["beta"][1:], columns, strict=True))
    return norm.logpdf(y, mu, p["sigma"]).sum()


def earnings(p, d):
    height = (d["height"] - np.mean(d["height"])) / np.sqrt(np.var(d["height"], ddof=1))
    return _regression(np.log(d["earn"]), [height, d["male"], height * d["male"]], p)


def kidiq(p, d):
    columns = [d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]]
    return cauchy.logpdf(p["sigma"], 0, 2.5) + _regression(d["kid_score"], columns, p)


def mesquite(p, d):
    columns = [
        np.log(d["diam1"] * d["diam2"] * d["canopy_height"]),
        np.log(d["diam1"] * d["diam2"]),
        np.log(d["diam1"] / d["diam2"]),
        np.log(d["total_height"]),
        d["group"],
    ]
    return _regression(np.log(d["weight"]), columns, p)


def nes1976(p, d):
    ages = [(d["age_discrete"] == k) * 1.0 for k in (2, 3, 4)]
    return _regression(d["partyid7"], [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]], p)


def sblrc(p, d):
    total = norm.logpdf(p["beta"], 0, 10).sum() + norm.logpdf(p["sigma"], 0, 10)
    return total + norm.logpdf(d["y"], d["X"] @ p["beta"], p["sigma"]).sum()


LOG_DENSITIES = {
    "arK": ar_k,
    "bball_drive_event_0": bball,
    "earnings": earnings,
    "eight_schools": eight_schools,
    "gp_pois_regr": gp_pois_regr,
    "hmm_example": hmm_example,
    "hudson_lynx_hare": lotka_volterra,
    "kidiq": kidiq,
    "mesquite": mesquite,
    "nes1976": nes1976,
    "one_comp_mm_elim_abs": one_comp,
    "sblrc": sblrc,
}
