"""Estimated likelihoods, one a group, learned and sampled exactly: normal groups, whose posterior is known."""

import warnings
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.emulation import measured_by_pairs, noise_variance, squared_error, tilt
from pymc_kernel.plugin.emulation.exact_groups import EmulatedGroups
from pymc_kernel.plugin.emulation.record import with_zeros
from pymc_kernel.plugin.samplers.pooled import report_stuck_groups
from tests.plugin.models import noisy_model, sample
from tests.plugin.parts import QUIET, black_box, check_moments
from tests.reference.grids import moments

DATA = np.array([0.4, -0.9, 1.6])
CENTER_SD, EFFECT_SD, DATA_SD, NOISE_SD = 1.5, 0.8, 0.7, 1.0


def exact(mean, observed):
    """The log likelihood of groups, up to a constant."""
    return -0.5 * np.sum((observed - mean) ** 2) / DATA_SD**2


def estimate(rng, effect, observed):
    """The same with noise whose exponential has the expectation one."""
    return exact(effect, observed) + NOISE_SD * (rng.standard_normal() - 0.5 * NOISE_SD)


def groups(fn=estimate):
    """Three groups, centred."""
    with pm.Model() as model:
        center = pm.Normal("center", 0.0, CENTER_SD)
        effect = pm.Normal("effect", center, EFFECT_SD, shape=3)
        for i, y in enumerate(DATA):
            pk.EstimatedLikelihood(f"y{i}", fn, effect[i], observed=[y])
    return model


def posterior(prior, to_means):
    """Mean and covariance of normal parameters, from which ``to_means`` makes the means of the first groups."""
    data = DATA[: len(to_means)]
    gain = np.linalg.solve(to_means @ prior @ to_means.T + DATA_SD**2 * np.eye(len(data)), to_means @ prior).T
    return gain @ data, prior - gain @ to_means @ prior


def emulated_of(model, evaluations=60, seed=1):
    """A quick emulation, whose doubts do not matter here."""
    with warnings.catch_warnings(action="ignore"):
        return pk.emulate(model, evaluations, random_seed=seed, progressbar=False)


@pytest.fixture(scope="module")
def made():
    """The model and what was learned of it."""
    model = groups()
    return model, emulated_of(model)


def sampled(made, **settings):
    model, emulated = made
    settings = {"cores": None, "draws": 1000, "tune": 100, "seed": 3} | settings
    return sample(model, lambda: pk.EmulatedNUTS(emulated, transitions=1), **settings)


@pytest.mark.slow
def test_spread_is_exact_under_noise(made):
    idata = sampled(made, draws=4000)  # some 450 effective ones: a standard error of a mean is a third of the bound
    draws = np.concatenate([idata.posterior["center"].values[..., None], idata.posterior["effect"].values], axis=2)
    mean, covariance = posterior(CENTER_SD**2 + EFFECT_SD**2 * np.diag([0.0, 1.0, 1.0, 1.0]), np.eye(4)[1:])
    for i, sd in enumerate(np.sqrt(np.diag(covariance))):
        check_moments(draws[..., i], mean[i], sd, 0.15, 0.1)
    assert idata.sample_stats["evaluations"].values[:, 1:].max() == 1  # of the group that was estimated most


@pytest.mark.slow
def test_same_draws_for_any_cores(made):
    one, two = (sampled(made, draws=20, tune=20, cores=c) for c in (1, 2))
    np.testing.assert_array_equal(one.posterior["effect"].values, two.posterior["effect"].values)


@pytest.mark.long
def test_noise_follows_the_seed():
    """Of estimates of which too few succeed to learn from."""

    def estimates(seed):
        found = []

        def noted(rng, effect, observed):
            if len(found) == 12:
                raise RuntimeError
            found.append(estimate(rng, effect, observed))
            return found[-1]

        with pytest.raises(ValueError, match="too few"):
            emulated_of(groups(noted), evaluations=20, seed=seed)
        return found

    a, b, c = map(estimates, (1, 1, 2))
    assert (len(a), a) == (12, b)
    assert set(a).isdisjoint(c)


HIDDEN = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (noisy_model(pointwise=True), "pointwise"),
        (noisy_model(reuse_noise=0.5), "reuses"),
        (groups(lambda rng, theta, y: HIDDEN.standard_normal()), "called again at the same place"),
    ],
)
def test_estimates_that_are_not_learned_are_refused(model, said):
    with pytest.raises(ValueError, match=said):
        pk.emulate(model, progressbar=False)


# -- how far off ---------------------------------------------------------------------------------------


def errors_of(rng, n, sd, learned):
    """Errors (n, 2, 3) of something exact and of two terms with noise; ``learned`` (n, 3) is what was learned."""
    noise = sd * rng.standard_normal((n, 2, 3))
    noise[:, :, 0] = 0.0
    return noise - learned[:, None]


def test_squared_errors_of_what_is_learned_are_estimated_without_bias():
    rng = np.random.default_rng(1)
    learned = rng.standard_normal((50, 3)) * [0.1, 0.2, 0.3]
    found = np.array([squared_error(errors_of(rng, 50, 1.0, learned)) for _ in range(2000)])
    exact_variance = learned.var(axis=0, ddof=1).sum()
    assert abs(found[:, 0].mean() - exact_variance) < 4.0 * found[:, 0].std() / 2000**0.5
    assert abs(found[:, 1].mean() / found[:, 0].std() - 1.0) < 0.05  # and the standard error is right


def by_pairs(rng, n, sd, learned):
    return measured_by_pairs(errors_of(rng, n, sd, learned), [np.zeros((n, 1))] * 2)


def test_a_distance_by_estimates_is_never_zero_and_nears_it():
    rng = np.random.default_rng(2)
    for n in (10, 100, 1000):
        distances = [by_pairs(rng, n, 0.8, np.zeros((n, 3)))[0] for _ in range(50)]
        assert min(distances) > 0.0
        assert 0.1 < np.median(distances) * n**0.25 < 1.0
    assert measured_by_pairs(np.full((10, 2, 3), np.nan), [np.zeros((0, 1))] * 2)[0] == 1.0


def test_the_distance_without_noise_is_that_of_the_normal_log_ratio():
    rng = np.random.default_rng(3)
    distance, sd, share, _ = by_pairs(rng, 4000, 0.0, 0.5 * rng.standard_normal((4000, 3)) * [1.0, 0.0, 0.0])
    expected = 0.197, 0.5, np.exp(-0.25)  # the first is 2 Phi(.25) - 1
    np.testing.assert_allclose((distance, sd, share), expected, rtol=0.05)


def test_noise_and_its_tilt_are_measured():
    rng = np.random.default_rng(4)
    inputs = rng.standard_normal((4000, 1))
    variance = 1.0 + 0.4 * np.clip(inputs, -2.0, 2.0)
    errors = np.sqrt(variance) * rng.standard_normal((4000, 2))
    assert noise_variance(errors) == pytest.approx(1.0, rel=0.1)
    assert tilt(errors, inputs) == pytest.approx((0.5 * variance).var(), rel=0.3)
    assert abs(tilt(errors, rng.standard_normal((4000, 1)))) < 0.01


# -- harder models -------------------------------------------------------------------------------------


def groups_beside_exact():
    with groups() as model:
        pm.Normal("z", black_box(np.exp, "s", "s")(model["center"]), 0.5, observed=1.0)
    return model


def test_black_boxes_shows_terms_as_noisy():
    with groups_beside_exact():
        table = pk.black_boxes()
    assert table["noisy"].tolist() == [False, True]
    assert table["calls"].tolist() == [1, 3]
    assert set(table["name"][1].split(", ")) == {"y0", "y1", "y2"}


def groups_that_share():
    with pm.Model() as model:
        center = pm.Normal("center", 0.0, CENTER_SD)
        effect = pm.Normal("effect", center, EFFECT_SD, shape=3)
        pk.EstimatedLikelihood("y", estimate, effect[:2], observed=DATA[:2])
        pk.EstimatedLikelihood("y2", estimate, effect[2], observed=DATA[2:])
    return model


@pytest.mark.parametrize(
    ("make", "blocks"),
    [
        (groups_beside_exact, [([0], ()), ([1], (0,)), ([2], (1,)), ([3], (2,))]),  # what is exact is no term
        (groups_that_share, [([0], ()), ([1, 2], (0,)), ([3], (1,))]),
    ],
)
def test_groups_that_share_an_estimate_move_together(make, blocks):
    """As if a model had been emulated, whose posterior is the prior: what moves together does not depend on it."""
    with pm.Model() as learned:
        pm.Normal("effect", pm.Normal("center", 0.0, CENTER_SD), EFFECT_SD, shape=3)
    learned.emulation = SimpleNamespace(draws=np.random.default_rng(0).normal(size=(500, 4)), rhat=1.0)
    with make():
        step = pk.EmulatedNUTS(learned)
    assert [(b.tolist(), c) for b, c in step.blocks] == blocks


@pytest.mark.slow
def test_an_exact_black_box_beside_estimated_groups():
    """The exact one is learned without noise, and called at each block."""
    model = groups_beside_exact()
    emulated = emulated_of(model, evaluations=40)
    assert set(emulated.emulation.noise_sd) == {"y0", "y1", "y2"}
    assert all(0.3 < sd < 3.0 for sd in emulated.emulation.noise_sd.values())  # of some dozens of pairs
    assert emulated.emulation.log_ratio_sd > 0.0
    idata = sampled((model, emulated), draws=100, tune=20, chains=1, seed=1)
    assert idata.sample_stats["accept"].mean() > 0.3


@pytest.mark.slow
def test_a_group_nearly_without_data_stays_at_its_prior():
    def flat(rng, effect, observed):
        return 1e-4 * exact(effect, observed) + NOISE_SD * (rng.standard_normal() - 0.5 * NOISE_SD)

    with pm.Model() as model:
        effect = pm.Normal("effect", 0.0, 1.0, shape=3)
        pk.EstimatedLikelihood("y", flat, effect[0], observed=[3.0])
        pk.EstimatedLikelihood("y1", estimate, effect[1], observed=DATA[1:2])
    check_moments(sampled((model, emulated_of(model)), draws=500).posterior["effect"][..., 0], 0.0, 1.0, 0.3, 0.25)


@pytest.mark.parametrize(("longest", "sd", "said"), [(200, 0.7, "in some places"), (200, 3.0, "y0 3"), (90, 3.0, None)])
def test_a_group_that_is_stuck_is_said(longest, sd, said, recwarn):
    stats = xr.Dataset({"stuck": (("chain", "draw"), np.zeros((4, 1000), int))})
    stats["stuck"][2, 500 : 500 + longest] = np.arange(1, longest + 1)
    warnings.simplefilter("always")
    report_stuck_groups(stats, {"y0": sd, "y1": 0.5})
    texts = [str(w.message) for w in recwarn]
    assert (texts == []) if said is None else (said in texts[0] and "less noisy" in texts[0])


@pytest.mark.slow
def test_a_block_that_does_not_move_is_counted(made, monkeypatch):
    def never(step, number, x, proposal, is_walk):
        return -np.inf, step.estimates, np.ones(3, bool)

    monkeypatch.setattr(EmulatedGroups, "_judged", never)
    idata = sampled(made, draws=12, tune=2, chains=1)
    np.testing.assert_array_equal(idata.sample_stats["stuck"].values[0], np.arange(1, 13))


SEEN = [3, 0, 5, 2, 7, 1]


def share_that_matches(rng, log_rate, observed):
    """The log of a share of forty simulated counts, often of none."""
    with np.errstate(divide="ignore"):
        return np.log((rng.poisson(np.exp(min(log_rate, 9.0)), 40) == observed).mean())


def test_estimates_of_zero_are_learned_as_low_ones():
    estimates = np.array([-1.0, -np.inf, -3.0, -np.inf]).reshape(4, 1, 1)
    np.testing.assert_allclose(with_zeros(estimates, np.zeros(1, int)).ravel(), [-1.0, -4.0, -3.0, -4.0])


@pytest.mark.slow
def test_groups_whose_estimates_are_often_zero_are_sampled_right():
    """At hardly any draw of the prior are the estimates of all six counts above zero."""
    with pm.Model() as model:
        rates = pm.Normal("rates", 0.0, 1.5, shape=6)
        for i, y in enumerate(SEEN):
            pk.EstimatedLikelihood(f"y{i}", share_that_matches, rates[i], observed=y)
    idata = pk.sample_khmc(1000, model=model, chains=2, cores=1, **QUIET)
    assert "least_accept" in idata.sample_stats
    assert idata.sample_stats["evaluations"].values[:, 1:].max() == 1
    grid = np.linspace(-8.0, 4.0, 4001)
    for i, y in enumerate(SEEN):
        exactly = moments(grid, y * grid - np.exp(grid) - 0.5 * (grid / 1.5) ** 2)
        check_moments(idata["posterior"]["rates"][:, :, i], *exactly, 0.2, 0.15)
