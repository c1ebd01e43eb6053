from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.rounds import CautiousRounds, Draws, cautious
from tests.reference.grids import moments
from tests.rounds.priors import NormalPrior, run

FAST = 600  # particles


class Quadratic(LearnedLikelihood):
    """A likelihood with means that are quadratic in the parameters: quick, and exact where they are."""

    def fit(self, parameters, summaries, rng=None, *, weights=None):
        return FittedQuadratic(parameters, summaries)

    def fit_folds(self, *_):
        return []


class FittedQuadratic:
    held_out = None

    def __init__(self, parameters, summaries):
        self.mean, self.spread = parameters.mean(axis=0), parameters.std(axis=0)
        features = self.features(parameters)
        self.weights = np.linalg.lstsq(features, summaries, rcond=None)[0]
        rest = summaries - features @ self.weights
        self.noise = np.sqrt((rest**2).sum(axis=0) / (len(rest) - features.shape[1]))

    def features(self, parameters):
        z = (parameters - self.mean) / self.spread
        rows, columns = np.triu_indices(z.shape[1])
        return np.column_stack([np.ones(len(z)), z, z[:, rows] * z[:, columns]])

    def log_density(self, parameters, observed):
        return stats.norm.logpdf(observed, self.features(parameters) @ self.weights, self.noise).sum(axis=1)

    def place_of(self, observed, parameters, rng):
        away = (observed - self.features(parameters) @ self.weights).mean(axis=0) / self.noise
        return float(stats.chi2(len(observed)).sf((away**2).sum()))


PRIOR = NormalPrior(np.array([0.0, 3000.0]), np.array([1e-3, 1000.0]))
STANDARD = NormalPrior(np.zeros(1), np.ones(1))
UNIT = np.array([1e-3, 1000.0])


def simulate_normal(rng, parameters):
    return rng.normal(parameters / UNIT, 0.02)


def test_rounds_close_in_on_a_narrow_posterior_and_never_go_where_few_simulations_count():
    rounds = CautiousRounds(600, 4, Quadratic(), FAST)
    draws, state = run(rounds, simulate_normal, PRIOR, np.array([1.3, 2.2]), np.random.default_rng(1))
    precision = UNIT**2 / PRIOR.spread**2 + 0.02**-2.0
    mean = (PRIOR.mean * UNIT / PRIOR.spread**2 + np.array([1.3, 2.2]) * 0.02**-2.0) / precision
    draws = draws.positions / UNIT
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.2 * 0.02)
    np.testing.assert_allclose(draws.std(axis=0), precision**-0.5, rtol=0.12)
    assert len(state.parameters) == 600
    assert [r.num_simulations for r in state.rounds] == [150] * 4
    # Far simulations are left out, until at the end they are kept: one shape fits all.
    assert state.rounds[1].num_near < 300
    assert state.rounds[2].num_near < 300
    assert state.rounds[3].num_near == 600
    # The last rounds simulate near the posterior, whose spread is a fiftieth of the prior's.
    assert state.parameters[-150:].std(axis=0)[0] < 0.2 * PRIOR.spread[0]
    first, *later = state.rounds
    assert first.power == 0.0
    assert min(r.effective for r in later) >= 19.9
    powers = [r.power for r in later]
    assert powers == sorted(powers)
    assert powers[0] < 0.3  # a fiftieth of the prior in two dimensions holds none of a hundred simulations


@pytest.mark.long
def test_far_simulations_are_left_out_where_they_mislead():
    """A quadratic fits the sine around its observation, not over three of its periods."""

    def simulate(rng, parameters):
        return rng.normal(np.column_stack([parameters, np.sin(4.0 * parameters)]), [0.15, 0.05])

    rounds, observed = CautiousRounds(400, 4, Quadratic(), FAST), np.array([0.1, 0.2])
    draws, state = run(rounds, simulate, STANDARD, observed, np.random.default_rng(2))
    assert state.rounds[-1].num_near < 390
    grid = np.linspace(-2.0, 2.0, 4001)
    log_density = stats.norm(grid, 0.15).logpdf(0.1) + stats.norm(np.sin(4.0 * grid), 0.05).logpdf(0.2)
    mean, spread = moments(grid, log_density - 0.5 * grid**2)
    draws = draws.positions[:, 0]
    inside = np.abs(draws) < 0.4  # the next half period holds less than a hundredth
    assert inside.mean() > 0.97
    assert abs(draws[inside].mean() - mean) < 0.5 * spread


def test_both_modes_are_kept():
    prior = NormalPrior(np.zeros(1), np.array([2.0]))
    rounds = CautiousRounds(300, 3, Quadratic(), FAST)
    found = run(rounds, lambda rng, p: rng.normal(p**2, 0.1), prior, np.array([4.0]), np.random.default_rng(3))
    draws = found[0].positions[:, 0]
    assert abs((draws > 0).mean() - 0.5) < 0.05
    np.testing.assert_allclose(np.abs(draws).mean(), 2.0, atol=0.01)
    np.testing.assert_allclose(np.abs(draws).std(), 0.1 / 4.0, rtol=0.2)


def test_failing_simulations_are_left_out_and_nothing_but_failures_is_said():
    def simulate(rng, parameters):
        summaries = simulate_normal(rng, parameters)
        summaries[parameters[:, 0] < 0.0] = np.nan
        return summaries

    observed = np.array([0.5, 2.2])
    draws, state = run(CautiousRounds(600, 3, Quadratic(), FAST), simulate, PRIOR, observed, np.random.default_rng(4))
    np.testing.assert_allclose((draws.positions / UNIT).mean(axis=0), observed, atol=0.02)
    assert 60 < state.rounds[0].num_failed < 140
    assert state.near.sum() == state.rounds[-1].num_near
    assert np.isfinite(state.summaries[state.near]).all()
    rounds = CautiousRounds(100, 2, Quadratic(), FAST)
    with pytest.raises(ValueError, match="only 0 simulations can be learned from"):
        run(rounds, lambda rng, p: np.full(p.shape, np.nan), PRIOR, np.zeros(2), np.random.default_rng(4))


def test_rounds_end_by_themselves():
    rounds = CautiousRounds(1000, None, Quadratic(), FAST)
    _, state = run(rounds, lambda rng, p: rng.normal(p, 1.0), STANDARD, np.array([0.5]), np.random.default_rng(5))
    assert sum(r.num_simulations for r in state.rounds) == 1000
    assert len(state.rounds) < 5
    assert state.rounds[-2].change < 0.1


def test_a_proposal_is_normalized_against_the_prior_and_a_region_ends():
    rng = np.random.default_rng(6)
    rounds = CautiousRounds(300, 2, Quadratic(), FAST)
    state = rounds.init(PRIOR, np.array([1.3, 2.2]))
    state, parameters = rounds.propose(rng, state)
    state = rounds.update(rng, state, parameters, simulate_normal(rng, parameters))
    state, _ = rounds.propose(rng, state)
    ratios = np.exp(state.proposals[-1].log_ratio(PRIOR.draw(rng, 200_000)))
    assert ratios.mean() == pytest.approx(1.0, abs=0.15)
    mixed = np.exp(cautious.log_mixture_ratio(state, PRIOR.draw(rng, 200_000)))
    assert mixed.mean() == pytest.approx(1.0, abs=0.1)
    rng = np.random.default_rng(8)
    positions = rng.standard_normal((2000, 2)) * [1e-3, 1e3]
    region = cautious.region_of(rng, positions)
    assert 0.99 < (region.log_penalty(positions) == 0.0).mean() < 1.0
    assert region.log_penalty(np.array([[0.02, 0.0]]))[0] < -5.0


def test_divergence_of_two_normals():
    rng = np.random.default_rng(7)

    def draws_of(mean, spread):
        positions = rng.normal(mean, spread, (200_000, 1))
        return Draws(positions, np.zeros(len(positions)), 0.0, 0.0, (), ())

    def density(mean, spread):
        return lambda parameters: 7.0 + stats.norm(mean, spread).logpdf(parameters[:, 0])

    found = cautious.divergence(draws_of(0.0, 1.0), density(0.0, 1.0), draws_of(0.5, 2.0), density(0.5, 2.0))
    exact = 0.5 * ((1.0 + 0.25) / 4.0 + (4.0 + 0.25) / 1.0) - 1.0
    assert found == pytest.approx(exact, rel=0.02)


def test_the_power_is_the_largest_that_simulations_support():
    """Draws of a normal prior, a likelihood as narrow as a tenth of it: the effective number is known."""
    rng = np.random.default_rng(9)
    n = 40_000
    parameters = STANDARD.draw(rng, n)
    exact = SimpleNamespace(log_density=lambda parameters, observed: -0.5 * (parameters[:, 0] / 0.003) ** 2)
    likelihood = cautious.LocalLikelihood(exact, np.zeros(1), None)
    state = CautiousRounds().init(STANDARD, np.zeros(1))
    proposals, near = (cautious.RoundProposal(None, 0.0, 0.0, None),), np.ones(n, dtype=bool)
    state = state._replace(parameters=parameters, near=near, likelihood=likelihood, proposals=proposals, sizes=(n,))
    power, effective = cautious.choose_power(state)
    assert effective == pytest.approx(600.0, rel=1e-3)  # 1.5 %
    a = power / 0.003**2  # weights exp(-a x^2 / 2): E[w]^2 / E[w^2] = sqrt(1 + 2 a) / (1 + a)
    assert n * np.sqrt(1.0 + 2.0 * a) / (1.0 + a) == pytest.approx(600.0, rel=0.1)
    # Simulations that were made near the posterior count for less, each by the density of where they were made.
    narrow = cautious.RoundProposal(likelihood, 1e-4, 0.5 * np.log(1.0 / (1.0 + 1e-4 / 0.003**2)), None)
    ratio = cautious.log_mixture_ratio(state._replace(proposals=(narrow,)), parameters)
    assert np.exp(ratio).mean() == pytest.approx(1.0, abs=0.05)


def test_what_cannot_be_learned_from_is_refused(rng):
    rounds = CautiousRounds(20, 1, Quadratic(), FAST)
    state, parameters = rounds.propose(rng, rounds.init(PRIOR, np.zeros(2)))
    with pytest.raises(ValueError, match="summaries must have shape"):
        rounds.update(rng, state, parameters, np.zeros((20, 3)))
    with pytest.raises(ValueError, match="observed must be"):
        rounds.init(PRIOR, np.array([np.nan]))
    with pytest.raises(ValueError, match="too few for 3 rounds"):
        CautiousRounds(num_simulations=2, rounds=3)
    rounds = CautiousRounds(num_simulations=10, rounds=5, num_particles=FAST)
    state, parameters = rounds.propose(rng, rounds.init(STANDARD, np.zeros(1)))
    with pytest.raises(ValueError, match=r"only 2 simulations can be learned from.*fewer rounds"):
        rounds.update(rng, state, parameters, parameters)  # which are no failures


@pytest.mark.parametrize(("number", "sizes"), [(30, [30]), (70, [23, 23, 24]), (100, [20] * 5)])
def test_few_simulations_make_fewer_rounds(number, sizes):
    """Rounds of fewer simulations than are learned from would end in an error."""
    rounds = CautiousRounds(num_simulations=number)
    state, found = rounds.init(STANDARD, np.zeros(1)), []
    while sum(found) < number:
        found.append(rounds._next_size(state))
        unsettled = SimpleNamespace(power=0.5, change=1.0)
        state = state._replace(sizes=tuple(found), rounds=(unsettled,) * len(found))
    assert found == sizes


def after_one_round(number):
    """Settings of one round and the state after it, with simulations of y = theta + noise, and a generator."""
    rng, config = np.random.default_rng(8), CautiousRounds(number, rounds=1)
    state, theta = config.propose(rng, config.init(STANDARD, np.zeros(1)))
    return config, config.update(rng, state, theta, theta + 0.5 * rng.standard_normal(theta.shape)), rng


@pytest.mark.slow
def test_refits_lie_as_far_apart_as_simulations_leave_open():
    """The mean of n simulations has the standard error of their noise over the root of n."""
    config, state, rng = after_one_round(300)
    grid = np.linspace(-2.0, 2.0, 401)[:, None]

    def mean(likelihood):
        weights = np.exp(likelihood(grid))
        return float(weights @ grid[:, 0] / weights.sum())

    means = [mean(fit) for fit in config.refits(rng, state, 16)]
    error = 0.5 / np.sqrt(300)
    assert 0.6 * error < np.std(means) < 2.0 * error
    assert abs(np.mean(means) - mean(state.likelihood)) < error


def test_weights_of_refits_are_one_on_average(monkeypatch):
    (config, state, rng), given = after_one_round(100), []
    monkeypatch.setattr(LearnedLikelihood, "fit", lambda *args, weights: given.append(weights) or state.likelihood.fit)
    config.refits(rng, state, 5)
    np.testing.assert_allclose(np.mean(given, axis=0), np.ones(100))
    assert 0.6 < np.var(given) < 0.75  # of five times a share: (5 - 1) / (5 + 1)
