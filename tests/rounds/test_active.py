from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.rounds import ActiveLearning
from pymc_kernel.rounds.learned_posterior import LogPosterior, _bounded, drawn_from
from tests.rounds.priors import NormalPrior

PRIOR = NormalPrior(np.zeros(2), np.full(2, 3.0))


def learned(log_likelihood, prior, num_evaluations, seed=0, noise=0.0, config=None):
    rng, own = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    config = ActiveLearning(noisy=noise > 0.0) if config is None else config
    d = len(prior.mean)
    state = config.init(prior, prior.draw(rng, 2 * d + 6))
    while True:
        places = state.proposed[: num_evaluations - len(state.positions)]
        values = log_likelihood(places) + noise * own.standard_normal(len(places))
        state = config.update(rng, state, values)
        state = config.propose(rng, state)
        if len(state.positions) >= num_evaluations:
            return config, state, rng


def banana(x):
    """A normal variable and one around its square, on scales of a thousand and a thousandth."""
    return stats.norm(x[:, 0], 1.0).logpdf(0.5) + stats.norm(x[:, 1] - x[:, 0] ** 2, 0.5).logpdf(0.0)


def moments_on_grid(log_density, low, high, size=600):
    axes = [np.linspace(a, b, size) for a, b in zip(low, high, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = log_density(x)
    weights = np.exp(values - values.max())
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    evidence = np.log(weights.sum() * cell) + values.max()
    weights /= weights.sum()
    mean = weights @ x
    return mean, np.sqrt(weights @ (x - mean) ** 2), evidence, x, weights


@pytest.fixture(scope="module")
def after_eighty():
    return learned(banana, PRIOR, 80)


def test_a_bent_posterior_of_odd_scales_from_eighty_evaluations():
    scale = np.array([1e-4, 1e5])
    prior = NormalPrior(PRIOR.mean, PRIOR.spread * scale)
    config, state, rng = learned(lambda x: banana(x / scale), prior, 80, seed=1)
    draws = config.sample(rng, state, 4000)
    mean, spread, evidence, x, weights = moments_on_grid(lambda z: banana(z) + PRIOR.log_density(z), (-4, -4), (4, 10))
    found = draws.positions / scale
    np.testing.assert_allclose((found.mean(axis=0) - mean) / spread, 0.0, atol=0.08)
    np.testing.assert_allclose(found.std(axis=0) / spread, 1.0, atol=0.08)
    for j in range(2):
        order = np.argsort(x[:, j])
        exact = np.interp([0.05, 0.95], np.cumsum(weights[order]), x[order, j])
        np.testing.assert_allclose((np.quantile(found[:, j], [0.05, 0.95]) - exact) / spread[j], 0.0, atol=0.12)
    assert abs(draws.log_evidence - evidence) < 0.1
    distance = config.distance(state)
    assert distance.total_variation < 0.15
    assert not state.is_climbing


def test_a_narrow_posterior_far_from_the_prior_draws_is_found():
    center, width = np.array([4.0, -5.0, 3.0]), np.array([0.01, 0.02, 0.05])
    prior = NormalPrior(np.zeros(3), np.full(3, 3.0))
    config, state, rng = learned(lambda x: stats.norm(x, width).logpdf(center).sum(axis=1), prior, 120)
    draws = config.sample(rng, state, 2000)
    np.testing.assert_allclose((draws.positions.mean(axis=0) - center) / width, 0.0, atol=0.1)
    np.testing.assert_allclose(draws.positions.std(axis=0) / width, 1.0, atol=0.08)
    exact = stats.norm(0.0, np.sqrt(9.0 + width**2)).logpdf(center).sum()
    assert abs(draws.log_evidence - exact) < 0.1


def test_noise_is_averaged_over():
    config, state, rng = learned(
        lambda x: stats.norm(x, 0.5).logpdf([1.0, -1.0]).sum(axis=1),
        PRIOR,
        240,
        noise=1.0,
        config=ActiveLearning(12, noisy=True),
    )
    precision = 1.0 / 9.0 + 4.0
    draws = config.sample(rng, state, 4000).positions
    np.testing.assert_allclose((draws.mean(axis=0) - 4.0 * np.array([1.0, -1.0]) / precision) * 2.0, 0.0, atol=0.3)
    np.testing.assert_allclose(draws.std(axis=0) * np.sqrt(precision), 1.0, atol=0.25)
    assert config.distance(state).total_variation < 0.5


def test_a_second_search_finds_the_mode_that_the_first_one_left():
    """Two modes of half the mass each, seventeen standard deviations apart: the first search climbs one of them."""

    def two(x):
        return np.logaddexp(*(stats.norm(x, 0.5).logpdf(center).sum(axis=1) for center in (3.0, -3.0)))

    config, state, rng = learned(two, PRIOR, 72, seed=1)
    above = np.mean(config.sample(rng, state, 2000).positions.sum(axis=1) > 0.0)
    assert abs(above - 0.5) < 0.1
    elsewhere = [batch.is_elsewhere for batch in state.batches]
    assert 1 <= sum(elsewhere) <= len(elsewhere) / 2
    assert all(batch.log_ratios.size == 0 for batch in state.batches if batch.is_elsewhere)


def test_mass_that_only_the_last_draws_have_is_part_of_the_distance(after_eighty):
    """The evidence of draws and of particles, which are judged, is that of one surrogate, whichever has more."""
    config, state, rng = after_eighty
    draws = config.sample(rng, state, 1000)
    assert config.unjudged_mass(state, draws) == 0.0
    assert config.distance(state, draws) == config.distance(state)
    known, largest = config._evidence_range(state)
    for evidence in (largest + 2.3, known - 2.3):
        other = draws._replace(log_evidence=evidence)
        assert config.unjudged_mass(state, other) == pytest.approx(1.0 - np.exp(-2.0))
        assert config.distance(state, other).total_variation == config.unjudged_mass(state, other)
    adopted = config.adopt(state, other)
    assert {tuple(x) for x in adopted.particles} <= {tuple(x) for x in draws.positions}


def test_a_false_mode_of_the_latest_surrogate_is_no_mass_of_the_draws(after_eighty):
    """Where nearly all of its particles are there, the surrogates of the batches before say what is known."""
    config, state, rng = after_eighty
    draws = config.sample(rng, state, 1000)
    hidden = state._replace(log_evidence=state.log_evidence - 5.0)
    assert config.unjudged_mass(hidden, draws) == 0.0
    batches = [batch._replace(known_evidence=batch.known_evidence - 5.0) for batch in state.batches]
    assert config.unjudged_mass(hidden._replace(batches=tuple(batches)), draws) > 0.98


def test_a_second_search_of_given_starts_begins_from_the_prior(after_eighty):
    """From draws of the prior at the start it takes the farther half; given places may all lie near one mode."""
    config, state, _ = after_eighty
    state = state._replace(rival=None, is_rivals_turn=False, next_rival=0)
    for is_from_prior, known, proposed in ((True, 5, 4), (False, 0, 10)):
        num_start = config.init(PRIOR, state.positions[:10], is_from_prior).num_start
        begun = config.propose(np.random.default_rng(0), state._replace(num_start=num_start))
        assert (len(begun.rival.positions), len(begun.proposed)) == (known, proposed)
        assert not config.has_searched_twice(begun)
    assert config.has_searched_twice(state._replace(next_rival=80))


class Spiked(LogPosterior):
    """A surrogate that is far too high in a corner where the density is nothing."""

    corner = np.array([2.2, 2.8])

    def log_likelihood(self, positions):
        return super().log_likelihood(positions) + 50.0 * np.exp(
            -0.5 * ((positions - self.corner) ** 2).sum(axis=1) / 0.25
        )


def test_draws_keep_out_of_a_corner_where_the_surrogate_is_above_all_values(after_eighty):
    config, state, rng = after_eighty
    spiked = state._replace(learned=Spiked(**{f.name: getattr(state.learned, f.name) for f in fields(LogPosterior)}))
    free = drawn_from(rng, spiked.learned, state.particles, config.sampler)
    assert free.log_evidence > state.log_evidence + 5.0  # unbounded, it would be all that there is
    draws = config.sample(rng, spiked, 2000)
    near = (((draws.positions - Spiked.corner) ** 2).sum(axis=1) < 0.25).mean()
    assert near < 0.06
    np.testing.assert_allclose(draws.log_evidence, state.log_evidence, atol=0.3)


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_posterior_ends_at_a_wall(seed):
    """Half a normal distribution, of precision 1 + 1/9; beyond the wall likelihoods are zero or NaN."""

    def half(x):
        values = stats.norm(x, 1.0).logpdf(0.0).sum(axis=1)
        values[x[:, 0] < 0.0] = -np.inf
        values[x[:, 0] < -1.0] = np.nan
        return values

    config, state, rng = learned(half, PRIOR, 120, seed=seed)
    draws = config.sample(rng, state, 4000)
    found, spread = draws.positions, (1.0 + 1.0 / 9.0) ** -0.5
    assert np.mean(found[:, 0] < 0.0) < 0.08  # 0.5 if nothing kept them out
    np.testing.assert_allclose(
        np.quantile(found[:, 0], [0.05, 0.5, 0.95]), spread * stats.halfnorm.ppf([0.05, 0.5, 0.95]), atol=0.08
    )
    np.testing.assert_allclose(found[:, 1].std(), spread, rtol=0.07)
    exact = stats.norm(0.0, np.hypot(3.0, 1.0)).logpdf(0.0) * 2 - np.log(2.0)
    assert abs(draws.log_evidence - exact) < 0.1


def test_a_zero_estimate_is_no_wall():
    """Estimates of a likelihood are zero by chance, one in five here: nothing is cut off."""
    own = np.random.default_rng(9)

    def estimates(x):
        values = stats.norm(x, 1.0).logpdf(0.0).sum(axis=1)
        return np.where(own.random(len(x)) < 0.2, -np.inf, values)

    _, state, _ = learned(estimates, PRIOR, 60, config=ActiveLearning(noisy=True))
    assert state.learned.support is None


@pytest.mark.slow
def test_the_distance_knows_of_a_wrong_surrogate(after_eighty):
    """A surrogate that never hears of a steep wall is as far from the posterior as the wall cuts off."""
    config, state, rng = after_eighty
    assert config.distance(state).total_variation < 0.2
    state = config.propose(rng, state)
    while state.is_rivals_turn:  # the second search proposes no draws of the first one's surrogate
        state = config.propose(rng, config.update(rng, state, banana(state.proposed)))
    walled = banana(state.proposed) - 5.0 * (np.arange(len(state.proposed)) % 2)  # half of the fresh draws, too
    assert (
        config.distance(config.update(rng, state, walled)).total_variation
        > 1.5 * config.distance(state).total_variation
    )
    ratios = np.log(np.array([1.0, 1.0, 1.0, 1e-12] * 10))
    last = next(b for b in reversed(state.batches) if not b.is_elsewhere)
    batch = last._replace(log_ratios=ratios, caution=np.zeros(40), power=1.0)
    found = config.distance(state._replace(batches=(batch,)))
    np.testing.assert_allclose(found.total_variation, 0.25)
    np.testing.assert_allclose(found.effective_share, 0.75)


def test_deep_values_are_on_a_log_scale_with_noise():
    values = np.concatenate([-0.5 * np.linspace(0.0, 3.0, 40) ** 2, [-1e3, -1e9, -np.inf]])
    bounded, noise, unit, power, is_good = _bounded(values, 2, False)
    np.testing.assert_array_equal(bounded[:40], values[:40])
    assert (noise[:40] == 0.0).all()
    assert (noise[40:] > 0.0).all()
    assert (np.diff(bounded[39:42]) < 0.0).all()
    assert np.isfinite(bounded).all()
    np.testing.assert_allclose(bounded[40], -18.0 - 18.0 * np.log1p(982.0 / 18.0))  # a window of 4 d + 10
    assert (unit, power) == (1.0, 1.0)
    assert is_good[:40].all()
    assert not is_good[40:].any()


@pytest.mark.parametrize("depth", [pytest.param(1e4, marks=pytest.mark.slow), 1e80])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_values_of_all_depths_are_learned_from_and_failures_drawn_anew(depth, seed):
    """A recursion that runs away: no density at most places of the prior, or one that is lower by any order."""
    prior = NormalPrior(np.zeros(4), np.full(4, 2.0))

    def log_likelihood(x):
        size = np.abs(x).max(axis=1)
        near = -0.5 * ((x - 0.3) ** 2).sum(axis=1)
        return np.select([size < 2.5, size < 3.0], [near, near - depth * (size - 2.5)], -np.inf)

    config, state, rng = learned(log_likelihood, prior, 60, seed=seed)
    assert np.isinf(state.log_likelihood[:14]).sum() >= 3
    draws = config.sample(rng, state, 2000).positions
    np.testing.assert_allclose(draws.mean(axis=0), 0.24, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0), np.sqrt(0.8), rtol=0.15)


def test_what_cannot_be_learned_is_said():
    config = ActiveLearning(5)
    rng = np.random.default_rng(0)
    state = config.init(PRIOR, PRIOR.draw(rng, 8))
    assert state.proposed.shape == (8, 2)
    state = config.update(rng, state, np.full(8, np.nan))
    state = config.propose(rng, state)
    assert state.proposed.shape == (5, 2)  # draws of the prior again
    with pytest.raises(ValueError, match="0 of 8 evaluations"):
        config.sample(rng, state, 10)
    with pytest.raises(ValueError, match="at most 5 entries"):
        config.update(rng, state, np.zeros(6))


def test_a_look_beyond_the_ends_of_draws_finds_walls_that_the_density_has_not(after_eighty):
    """Draws that lack the outer part of a bend, and whole ones."""
    config, state, _ = after_eighty
    rng = np.random.default_rng(5)
    whole = config.sample(rng, state, 4000)
    first = whole.positions[:, 0]
    part = whole._replace(positions=whole.positions[np.abs(first - np.median(first)) < 0.5 * first.std()])
    assert config.num_beyond_ends(2, 200) == 12
    assert config.num_beyond_ends(9, 240) == 24  # four coordinates
    assert config.num_beyond_ends(2, 100) == 0  # more than a tenth
    found = {}
    for name, draws in (("whole", whole), ("part", part)):
        looked = config.beyond_ends(rng, state, draws, 12)
        assert len(looked.proposed) == 12
        after = config.update(rng, looked, banana(looked.proposed))
        found[name] = after.open_ends
        assert after.ends == ()
        assert len(after.positions) == len(state.positions) + 12
        assert after.batches[-1].is_elsewhere
        assert config.distance(after).num_draws == config.distance(state).num_draws
    assert found["whole"] == ()
    assert {(end.coordinate, end.end > np.median(first)) for end in found["part"] if end.coordinate == 0} == {
        (0, False), (0, True),
    }  # fmt: skip
    assert all(end.ratio > 0.6 for end in found["part"])


def test_a_look_that_is_cut_short_judges_the_ends_that_were_evaluated(after_eighty):
    config, state, _ = after_eighty
    rng = np.random.default_rng(6)
    whole = config.sample(rng, state, 4000)
    first = whole.positions[:, 0]
    part = whole._replace(positions=whole.positions[np.abs(first - np.median(first)) < 0.5 * first.std()])
    looked = config.beyond_ends(rng, state, part, 12)
    ends = sorted(looked.ends, key=lambda end: end.coordinate)
    looked = looked._replace(ends=tuple(ends), proposed=np.concatenate([end.places[:3] for end in ends]))
    after = config.update(rng, looked, banana(looked.proposed[:3]))
    assert [end.coordinate for end in after.open_ends] == [0]


class Hierarchy:
    """The log scale of six effects, and these: a funnel."""

    is_proper, mean = True, np.zeros(7)

    def draw(self, rng, size):
        log_scale = rng.normal(-1.0, 1.5, size)
        return np.column_stack([log_scale, np.exp(log_scale)[:, None] * rng.standard_normal((size, 6))])

    def log_density(self, x):
        inner = stats.norm(0.0, np.exp(x[:, :1])).logpdf(x[:, 1:]).sum(axis=1)
        return stats.norm(-1.0, 1.5).logpdf(x[:, 0]) + inner


@pytest.mark.slow
def test_particles_reach_the_neck_of_a_hierarchy():
    """Data that say little: half of the scales are below a third of the noise, where the effects are all near zero."""
    observed = np.array([0.4, -0.9, 0.3, 0.1, -0.2, 0.6])

    def log_likelihood(x):
        return stats.norm(x[:, 1:], 0.5).logpdf(observed).sum(axis=1)

    config, state, rng = learned(log_likelihood, Hierarchy(), 150, seed=1)
    found = np.concatenate([config.sample(rng, state, 1000).positions[:, 0] for _ in range(4)])
    grid = np.linspace(-9.0, 3.0, 2001)
    total = np.sqrt(0.25 + np.exp(2.0 * grid))
    log_weights = stats.norm(-1.0, 1.5).logpdf(grid) + stats.norm(0.0, total[:, None]).logpdf(observed).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    exact = np.interp([0.05, 0.25, 0.5], np.cumsum(weights) / weights.sum(), grid)
    sd = np.sqrt(weights @ (grid - weights @ grid / weights.sum()) ** 2 / weights.sum())
    np.testing.assert_allclose((np.quantile(found, [0.05, 0.25, 0.5]) - exact) / sd, 0.0, atol=0.25)
