"""Steps of estimated groups from exact draws of parameters with random numbers, whose distribution they must leave."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy.signal import lfilter

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.exact_groups import Estimates
from pymc_kernel.plugin.emulation.exact_step import enough_transitions
from tests.plugin.test_estimated_groups import CENTER_SD, DATA, DATA_SD, EFFECT_SD, exact, posterior

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


def centred(likelihood):
    """A center, two effects, and an offset that both likelihoods have as an input."""
    with pm.Model() as model:
        center = pm.Normal("center", 0.0, CENTER_SD)
        effect = pm.Normal("effect", center, EFFECT_SD, shape=2)
        likelihood(effect, pm.Normal("offset", 0.0, OFFSET_SD))
    return model


def two_groups():
    def estimates(effect, offset):
        for i in range(2):
            pk.EstimatedLikelihood(f"y{i}", two_valued, effect[i], offset, observed=[DATA[i]])

    return centred(estimates)


def posterior_of_two():
    """Mean (4,) and covariance (4, 4) of center, effects and offset."""
    prior = np.diag([CENTER_SD**2, EFFECT_SD**2, EFFECT_SD**2, OFFSET_SD**2])
    prior[:3, :3] = CENTER_SD**2 + np.diag([0.0, EFFECT_SD**2, EFFECT_SD**2])
    return posterior(prior, np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]))


def wrongly_learned():
    """A model in place of an emulated one, whose posterior is elsewhere."""
    model = centred(lambda effect, offset: pm.Normal("y", effect + offset, DATA_SD, observed=DATA[:2] + 1.2))
    mean, covariance = posterior_of_two()
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


def correlated(rng, correlation, num_draws=4000):
    """Draws (n, 2) of which only the second parameter is correlated from draw to draw."""
    noise = rng.standard_normal((num_draws, 2))
    noise[:, 1] = lfilter([1.0], [1.0, -correlation], noise[:, 1])
    return noise


@pytest.mark.parametrize(("correlation", "number"), [(0.0, 2), (0.6, 4), (0.99, 10)])
def test_the_slowest_parameter_decides_how_many_transitions_a_draw_has(rng, correlation, number):
    """One effective draw of an autoregression takes (1 + r) / (1 - r) draws."""
    assert abs(enough_transitions(correlated(rng, correlation)) - number) <= 1


def test_the_way_to_the_posterior_does_not_count_for_transitions(rng):
    draws = correlated(rng, 0.0)
    draws[:1500] += np.linspace(100.0, 0.0, 1500)[:, None]
    assert enough_transitions(draws) <= 2


@pytest.mark.parametrize("draws", [[], np.zeros((3, 2)), np.zeros((100, 2))])
def test_where_nothing_is_known_of_the_chain_a_draw_has_most_transitions(draws):
    assert enough_transitions(draws) == 10


def test_settings_of_nuts_arrive():
    with pm.Model() as model:
        pm.Normal("x")
    model.emulation = SimpleNamespace(draws=np.zeros((5, 1)), rhat=1.0)
    with model:
        assert pk.EmulatedNUTS(model).target_accept == 0.95
        step = pk.EmulatedNUTS(model, target_accept=0.7, max_treedepth=3)
    assert (step.target_accept, step.max_treedepth) == (0.7, 3)
