"""Estimated likelihoods, one a group, learned and sampled exactly: normal groups, whose posterior is known."""

import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.exact_groups import EmulatedGroups

pytestmark = pytest.mark.filterwarnings("ignore:Numba will use object mode")

DATA = np.array([0.4, -0.9, 1.6])
CENTER_SD, EFFECT_SD, DATA_SD, NOISE_SD = 1.5, 0.8, 0.7, 1.0


def estimate(rng, effect, observed):
    """The log likelihood of a group with noise whose exponential has the expectation one."""
    exact = -0.5 * np.sum((observed - effect) ** 2) / DATA_SD**2
    return exact + NOISE_SD * (rng.standard_normal() - 0.5 * NOISE_SD)


def groups(fn=estimate):
    """Three groups, centred."""
    with pm.Model() as model:
        center = pm.Normal("center", 0.0, CENTER_SD)
        effect = pm.Normal("effect", center, EFFECT_SD, shape=3)
        for i, y in enumerate(DATA):
            pk.EstimatedLikelihood(f"y{i}", fn, effect[i], observed=[y])
    return model


def posterior():
    """Mean (4,) and covariance (4, 4) of center and effects."""
    prior = np.full((4, 4), CENTER_SD**2)
    prior[1:, 1:] += EFFECT_SD**2 * np.eye(3)
    seen = prior[1:, 1:] + DATA_SD**2 * np.eye(3)
    gain = np.linalg.solve(seen, prior[1:]).T
    return gain @ DATA, prior - gain @ prior[1:]


def emulated_of(model, **settings):
    """A quick emulation, whose doubts do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"evaluations": 60, "random_seed": 1, "progressbar": False} | settings
        return pk.emulate(model, **settings)


@pytest.fixture(scope="module")
def made():
    """The model and what was learned of it."""
    model = groups()
    return model, emulated_of(model)


def settled(model, emulated):
    """A step that was tuned on the emulated model, and a point to begin at."""
    with model:
        step = pk.EmulatedNUTS(emulated, transitions=1)
    step.setup_chain(np.random.default_rng(5), 200, 0)
    point = {v.name: x for v, x in zip(model.value_vars, (0.0, np.zeros(3)), strict=True)}
    for _ in range(100):
        point, _ = step.step({k: np.asarray(v) for k, v in point.items()})
    step.stop_tuning()
    return step


def noise_sd(effect):
    """Of estimates whose mean log is far from the log likelihood, so that the emulated posterior is wrong."""
    return 0.8 + 0.6 * np.tanh(effect)


def tilted(rng, effect, observed):
    """An unbiased estimate with more noise where the effect is large."""
    sd = noise_sd(effect)
    return -0.5 * np.sum((observed - effect) ** 2) / DATA_SD**2 + sd * (rng.standard_normal() - 0.5 * sd)


@pytest.fixture(scope="module")
def made_tilted():
    """The model of these estimates and what was learned of it."""
    model = groups(tilted)
    return model, emulated_of(model)


def after_frozen_steps(step, rng):
    """Return exact draws and where three frozen sweeps bring them, (n, 4) each.

    Estimates at an exact draw are those of its joint distribution with the noise: their log has a larger mean there.
    """
    mean, covariance = posterior()
    before = rng.multivariate_normal(mean, covariance, 600)
    after = []
    for x in before:
        point, sd = {"center": np.asarray(x[0]), "effect": x[1:]}, noise_sd(x[1:])
        exact = -0.5 * ((DATA - x[1:]) / DATA_SD) ** 2
        step.estimates = [np.asarray(v) for v in exact + sd * (rng.standard_normal(3) + 0.5 * sd)]
        for _ in range(3):
            point, _ = step.step(point)
        after.append([float(point["center"]), *point["effect"]])
    return before, np.array(after)


def largest_z(draws):
    """Return the largest error of means and variances (n, 4), in standard errors."""
    mean, covariance = posterior()
    centered = (draws - mean) / np.sqrt(np.diag(covariance))
    root = np.sqrt(len(draws))
    return max(
        np.abs(centered.mean(axis=0)).max() * root, np.abs((centered**2).mean(axis=0) - 1.0).max() * root / 2**0.5
    )


def test_frozen_steps_leave_the_posterior_invariant(made_tilted):
    before, after = after_frozen_steps(settled(*made_tilted), np.random.default_rng(11))
    assert largest_z(before) < 4.0
    assert largest_z(after) < 4.0  # of eight normal statistics: a false alarm in 2,000
    assert np.mean(np.all(before != after, axis=1)) > 0.2


def test_steps_without_correction_are_seen(made_tilted, monkeypatch):
    """The negative control: proposals are accepted as if they did not come from the emulated posterior."""
    monkeypatch.setattr(EmulatedGroups, "_correction", lambda self, x, estimates: self._density(x, estimates))
    _, after = after_frozen_steps(settled(*made_tilted), np.random.default_rng(11))
    assert largest_z(after) > 4.0


def test_coordinates_move_by_group(made):
    model, emulated = made
    with model:
        step = pk.EmulatedNUTS(emulated)
    assert isinstance(step, EmulatedGroups)
    assert [(b.tolist(), c) for b, c in step.blocks] == [([0], ()), ([1], (0,)), ([2], (1,)), ([3], (2,))]


def sampled(made, **settings):
    model, emulated = made
    settings = {"draws": 1000, "tune": 100, "chains": 2, "random_seed": 3} | settings
    with model:
        return pm.sample(
            step=pk.EmulatedNUTS(emulated, transitions=1),
            progressbar=False,
            compute_convergence_checks=False,
            **settings,
        )


def test_spread_is_exact_under_noise(made):
    idata = sampled(made)
    draws = np.concatenate([idata.posterior["center"].values[..., None], idata.posterior["effect"].values], axis=2)
    mean, covariance = posterior()
    sd = np.sqrt(np.diag(covariance))
    flat = draws.reshape(-1, 4)
    assert np.abs((flat.mean(axis=0) - mean) / sd).max() < 0.15
    assert np.abs(flat.std(axis=0) / sd - 1.0).max() < 0.1
    assert idata.sample_stats["evaluations"].values[:, 1:].max() == 1  # of the group that was estimated most


def test_same_draws_for_any_cores(made):
    one, two = (sampled(made, draws=20, tune=20, cores=c) for c in (1, 2))
    np.testing.assert_array_equal(one.posterior["effect"].values, two.posterior["effect"].values)


def test_emulation_follows_the_seed():
    model = groups()
    a, b, c = (emulated_of(model, evaluations=25, random_seed=s).emulation for s in (1, 1, 2))
    np.testing.assert_array_equal(a.log_density, b.log_density)
    assert not np.array_equal(a.log_density, c.log_density)


@pytest.mark.parametrize(("settings", "said"), [({"pointwise": True}, "pointwise"), ({"reuse_noise": 0.5}, "reuses")])
def test_estimates_that_are_not_learned_are_refused(settings, said):
    with pm.Model() as model:
        theta = pm.Normal("theta")

        def fn(rng, theta, y):
            return rng.standard_normal(y.shape) if "pointwise" in settings else rng.standard_normal()

        pk.EstimatedLikelihood("y", fn, theta, observed=[1.0, 2.0], **settings)
    with pytest.raises(ValueError, match=said):
        pk.emulate(model, progressbar=False)


def test_a_function_with_randomness_of_its_own_is_refused():
    hidden = np.random.default_rng(1)
    with pytest.raises(ValueError, match="called again at the same place"):
        pk.emulate(groups(lambda rng, theta, y: hidden.standard_normal()), progressbar=False)
