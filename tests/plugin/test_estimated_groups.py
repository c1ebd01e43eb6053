"""Estimated likelihoods, one a group, learned and sampled exactly: normal groups, whose posterior is known."""

import warnings
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.emulation import measured_by_pairs, noise_variance, squared_error, tilt
from pymc_kernel.plugin.emulation.exact_groups import EmulatedGroups, Estimates
from pymc_kernel.plugin.emulation.exact_step import enough_transitions
from pymc_kernel.plugin.emulation.record import with_zeros
from pymc_kernel.plugin.samplers.pooled import report_stuck_groups
from tests.plugin.models import sample
from tests.plugin.parts import QUIET, black_box, check_moments
from tests.reference.exact_draws import autoregressive
from tests.reference.grids import moments

DATA = np.array([0.4, -0.9, 1.6])
CENTER_SD, EFFECT_SD, DATA_SD, NOISE_SD = 1.5, 0.8, 0.7, 1.0


def exact(mean, observed):
    """The log likelihood of groups, up to a constant."""
    return -0.5 * np.sum((observed - mean) ** 2) / DATA_SD**2


def estimate(rng, effect, observed):
    """The same with noise whose exponential has the expectation one."""
    return exact(effect, observed) + NOISE_SD * (rng.standard_normal() - 0.5 * NOISE_SD)


def centred(likelihood, num_groups=3):
    """Groups around a center, whose effects have a likelihood."""
    with pm.Model() as model:
        center = pm.Normal("center", 0.0, CENTER_SD)
        likelihood(pm.Normal("effect", center, EFFECT_SD, shape=num_groups))
    return model


def groups(fn=estimate):
    def estimates(effect):
        for i, y in enumerate(DATA):
            pk.EstimatedLikelihood(f"y{i}", fn, effect[i], observed=[y])

    return centred(estimates)


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
    def estimates(effect):
        pk.EstimatedLikelihood("y", estimate, effect[:2], observed=DATA[:2])
        pk.EstimatedLikelihood("y2", estimate, effect[2], observed=DATA[2:])

    return centred(estimates)


@pytest.mark.parametrize(
    ("make", "blocks"),
    [
        (groups_beside_exact, [([0], ()), ([1], (0,)), ([2], (1,)), ([3], (2,))]),  # what is exact is no term
        (groups_that_share, [([0], ()), ([1, 2], (0,)), ([3], (1,))]),
    ],
)
def test_groups_that_share_an_estimate_move_together(make, blocks):
    """As if a model had been emulated, whose posterior is the prior: what moves together does not depend on it."""
    learned = centred(lambda effect: None)
    learned.emulation = SimpleNamespace(draws=np.random.default_rng(0).normal(size=(500, 4)), rhat=1.0)
    with make():
        step = pk.EmulatedNUTS(learned)
    assert [(b.tolist(), c) for b, c in step.blocks] == blocks


@pytest.mark.slow
def test_an_exact_black_box_beside_estimated_groups():
    """The exact one is learned without noise, and called at each block."""
    model = groups_beside_exact()
    learned = emulated_of(model, evaluations=40)
    noise = learned.emulation.noise_sd
    assert set(noise) == {"y0", "y1", "y2"}
    assert all(0.3 < sd < 3.0 for sd in noise.values())  # of some dozens of pairs
    assert learned.emulation.log_ratio_sd > 0.0
    stats = sampled((model, learned), draws=100, tune=20, chains=1, seed=1).sample_stats
    assert stats["accept"].mean() > 0.3


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
    monkeypatch.setattr(EmulatedGroups, "_judged", lambda step, *_: (-np.inf, step.estimates, np.ones(3, bool)))
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


# -- steps from exact draws of parameters with random numbers, whose distribution they must leave --------

OFFSET_SD = 0.5

# Noise with two values, so that the joint distribution of parameters and random numbers can be drawn exactly.


def height(mean):
    """How far the factor of an estimate is from one, up or down: much where the mean is large."""
    return 0.2 + 0.75 / (1.0 + np.exp(-2.0 * mean))


def is_up(seed):
    """Whether an estimate with this seed is too large, as ``two_valued`` draws it."""
    return np.random.default_rng([seed, 0]).random() < 0.5


def two_valued(rng, effect, offset, observed):
    """An unbiased estimate: the likelihood times one plus or minus its height."""
    mean = effect + offset
    factor = height(mean) if rng.random() < 0.5 else -height(mean)
    return exact(mean, observed) + np.log1p(factor)


def two_groups():
    """Of which both likelihoods have an offset as an input."""

    def estimates(effect):
        offset = pm.Normal("offset", 0.0, OFFSET_SD)
        for i in range(2):
            pk.EstimatedLikelihood(f"y{i}", two_valued, effect[i], offset, observed=[DATA[i]])

    return centred(estimates, 2)


def posterior_of_two():
    """Mean (4,) and covariance (4, 4) of center, effects and offset."""
    prior = np.diag([CENTER_SD**2, EFFECT_SD**2, EFFECT_SD**2, OFFSET_SD**2])
    prior[:3, :3] = CENTER_SD**2 + np.diag([0.0, EFFECT_SD**2, EFFECT_SD**2])
    return posterior(prior, np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]))


def wrongly_learned():
    """A model in place of an emulated one, whose posterior is elsewhere."""

    def shifted(effect):
        pm.Normal("y", effect + pm.Normal("offset", 0.0, OFFSET_SD), DATA_SD, observed=DATA[:2] + 1.2)

    model, (mean, covariance) = centred(shifted, 2), posterior_of_two()
    draws = np.random.default_rng(0).multivariate_normal(mean, 1.5 * covariance, 500)
    model.emulation = SimpleNamespace(draws=draws, rhat=1.0)
    return model


@pytest.fixture(scope="module")
def frozen():
    """A step of which ``after_frozen_steps`` makes one that does not tune any more."""
    learned = wrongly_learned()
    with two_groups():
        return pk.EmulatedNUTS(learned, transitions=1)


def after_frozen_steps(step, count, sweeps, seed):
    """Return exact draws of parameters with random numbers, and where sweeps bring them.

    Each row has the parameters and, for each group, whether its estimate is too large.
    """
    step.setup_chain(np.random.default_rng(5), 0, 0)  # the same numbers whichever tests ran before
    step.stop_tuning()
    step.is_placed = True
    rng = np.random.default_rng(seed)
    before, after = np.empty((2, count, 6))
    for x, y, place in zip(before, after, rng.multivariate_normal(*posterior_of_two(), count), strict=True):
        heights, seeds = height(place[1:3] + place[3]), []
        for h in heights:  # rejection: weights of one plus or minus h
            while True:
                s = int(rng.integers(2**63))
                if rng.random() * (1.0 + h) < (1.0 + h if is_up(s) else 1.0 - h):
                    break
            seeds.append(s)
        x[:4], x[4:] = place, [is_up(s) for s in seeds]
        inputs = step._density.inputs(place)
        step.estimates = Estimates([step._density.estimate(i, v, seeds[i]) for i, v in enumerate(inputs)], seeds)
        point = {"center": np.asarray(place[0]), "effect": place[1:3], "offset": np.asarray(place[3])}
        for _ in range(sweeps):
            point, _ = step.step(point)
        y[:4] = float(point["center"]), *point["effect"], float(point["offset"])
        y[4:] = [is_up(s) for s in step.estimates.seeds]
    return before, after


def largest_z(rows):
    """Return the largest error of means, variances and shares of large estimates, in standard errors.

    An estimate is too large with a probability of (1 + its height) / 2 in the joint distribution.
    """
    mean, covariance = posterior_of_two()
    centered = (rows[:, :4] - mean) / np.sqrt(np.diag(covariance))
    excess = rows[:, 4:] - 0.5 * (1.0 + height(rows[:, 1:3] + rows[:, 3:4]))
    statistics = np.concatenate([centered, centered**2 - 1.0, excess], axis=1)
    return np.abs(statistics.mean(axis=0) / statistics.std(axis=0)).max() * np.sqrt(len(rows))


@pytest.mark.slow
def test_frozen_steps_leave_parameters_and_random_numbers_invariant(frozen):
    before, after = after_frozen_steps(frozen, 1000, sweeps=4, seed=11)
    assert largest_z(before) < 4.0
    assert largest_z(after) < 4.0  # of ten statistics: a false alarm in 1,600
    assert np.all((before != after)[:, :4].mean(axis=0) > 0.5)


def test_new_random_numbers_come_with_the_blocks_that_move_fewest_terms(frozen):
    blocks = [(block.tolist(), calls) for block, calls in frozen.blocks]
    assert blocks == [([0], ()), ([1], (0,)), ([3], (0, 1)), ([2], (1,))]
    assert frozen._renewed == [set(), {0}, set(), {1}]


def test_a_term_that_no_probe_moves_gets_new_random_numbers_wherever_it_moves():
    learned = wrongly_learned()
    with two_groups() as model:
        far = pm.math.maximum(model["offset"], 100 * OFFSET_SD)
        pk.EstimatedLikelihood("far", two_valued, far, 0.0, observed=[100 * OFFSET_SD])
        step = pk.EmulatedNUTS(learned, transitions=1)
    assert [calls for _, calls in step.blocks] == [(), (1,), (1, 2), (2,)]
    assert step._renewed == [{0}, {0, 1}, {0}, {0, 2}]


def test_each_tuning_draw_begins_at_a_draw_of_the_emulation(frozen, monkeypatch):
    """A chain that goes on and on comes to where nothing was evaluated."""
    frozen.setup_chain(np.random.default_rng(1), 10, 0)
    begun, proposed = [], frozen._proposed

    def noted(number, x):
        if number == 0:
            begun.append(x.copy())
        return proposed(number, x)

    monkeypatch.setattr(frozen, "_proposed", noted)
    point = {"center": np.asarray(0.0), "effect": np.zeros(2), "offset": np.asarray(0.0)}
    for _ in range(5):
        point, _ = frozen.step(point)
    assert all((frozen._starts == x).all(axis=1).any() for x in begun)
    assert len(np.unique(begun, axis=0)) == 5


# -- the step where likelihoods are exact --------------------------------------------------------------


@pytest.mark.parametrize(("correlation", "number"), [(0.0, 2), (0.6, 4), (0.99, 10)])
def test_the_slowest_parameter_decides_how_many_transitions_a_draw_has(rng, correlation, number):
    """One effective draw of an autoregression takes (1 + r) / (1 - r) draws."""
    draws = np.column_stack([rng.standard_normal(4000), autoregressive(rng, correlation, 4000, 1)])
    assert abs(enough_transitions(draws) - number) <= 1


def test_where_nothing_is_known_of_the_chain_a_draw_has_most_transitions(rng):
    for draws in ([], np.zeros((3, 2)), np.zeros((100, 2))):
        assert enough_transitions(draws) == 10
    draws = rng.standard_normal((4000, 2))
    draws[:1500] += np.linspace(100.0, 0.0, 1500)[:, None]
    assert enough_transitions(draws) <= 2  # the way to the posterior does not count


def test_settings_of_nuts_arrive():
    with pm.Model() as model:
        pm.Normal("x")
    model.emulation = SimpleNamespace(draws=np.zeros((5, 1)), rhat=1.0)
    with model:
        assert pk.EmulatedNUTS(model).target_accept == 0.95
        step = pk.EmulatedNUTS(model, target_accept=0.7, max_treedepth=3)
    assert (step.target_accept, step.max_treedepth) == (0.7, 3)
