"""Posteriors of emulated models with modes that NUTS chains do not go between."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.plugin.emulation import chains
from pymc_kernel.plugin.emulation import search as searching
from pymc_kernel.plugin.emulation.chains import Chains, Particles, share_beyond
from pymc_kernel.plugin.emulation.emulation import Round
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds.particles import sample_particles
from tests.plugin.models import add_places, copied, learned_at, normal_draws, without_gradient
from tests.plugin.parts import black_box, data_around

pytestmark = pytest.mark.usefixtures("no_gradients")

MEAN, SQUARE, NOISE = 0.2, 4.0, 0.3
PLACES = np.linspace(-4.0, 4.0, 17)[:, None]


def with_two_modes(prior=lambda: pm.Normal("a", MEAN, 1.0)):
    """Return a model of a number whose square was observed; its prior says how likely which sign is."""
    return data_around(lambda: black_box(np.square, "s", "s")(prior()), SQUARE, NOISE)


def mass_above_zero():
    a = np.linspace(-4.0, 4.0, 4001)
    density = stats.norm.pdf(a, MEAN) * stats.norm.pdf(a**2, SQUARE, NOISE)
    return density[a > 0.0].sum() / density.sum()


@pytest.fixture(scope="module")
def learned_search():
    """One that has learned from places in both modes and between, and proposed more by draws of one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chains, "draw", normal_draws([2.0], 0.07))
        patch.setattr(chains, "density_and_gradient", without_gradient)
        search = learned_at(with_two_modes(), PLACES)
        search.propose(ModelPrior(search.model), 4)
    return search


@pytest.fixture
def search(learned_search, give_draws):
    give_draws([2.0], 0.07)
    return copied(learned_search)


def let_chains_disagree(search):
    """Return the prior of its model, too."""
    search.rounds = [Round(10 * i, 0.01, 0.02, 1.0, 0.0, 9.0, 0.0, 0.0) for i in range(3)]
    search.best, search.is_confirmed = search.rounds[-1], True
    assert search.is_divided
    return ModelPrior(search.model)


@pytest.fixture
def prior(search):
    """That of a search whose chains did not agree, and which has turned to particles."""
    prior = let_chains_disagree(search)
    assert search._weigh_modes(prior)
    return prior


@pytest.fixture
def given_particles(monkeypatch):
    """Let populations have draws of both modes, without the time that their moves take."""

    def sample(rng, prior, log_likelihood, num_particles):
        positions = rng.choice([-2.0, 2.0], (12, 1)) + 0.07 * rng.standard_normal((12, 1))
        return SimpleNamespace(positions=positions, powers=(0.1, 1.0), passed=(prior.draw(rng, 9), positions))

    monkeypatch.setattr(chains, "sample_particles", sample)


def test_places_on_the_way_are_draws_of_the_powers_below_one():
    prior = mock.Mock(draw=lambda rng, n: rng.normal(0.0, 10.0, (n, 1)))
    prior.log_density = lambda x: stats.norm.logpdf(x[:, 0], 0.0, 10.0)
    draws = sample_particles(np.random.default_rng(2), prior, lambda x: -0.5 * (x[:, 0] / 0.1) ** 2, 400)
    assert len(draws.passed) == len(draws.powers) > 3
    for power, positions in zip((0.0, *draws.powers), draws.passed, strict=False):
        assert positions.std() == pytest.approx((0.01 + 100.0 * power) ** -0.5, rel=0.2)


def test_places_of_each_population_are_before_each_of_its_powers(search, monkeypatch):
    passed = tuple(np.full((9, 1), i) for i in (0.0, 1.0, 2.0))
    found = SimpleNamespace(positions=np.zeros((250, 1)), powers=(0.1, 0.5, 1.0), passed=passed)
    monkeypatch.setattr(chains, "sample_particles", lambda *_: found)
    particles = Particles(search.chains, ModelPrior(search.model), np.random.default_rng(3))
    particles.draw(4)
    assert particles.passed.shape == (12, 1)
    np.testing.assert_array_equal(particles._powers, np.array([0.1, 0.5, 1.0])[particles.passed[:, 0].astype(int)])
    np.testing.assert_array_equal(np.unique(particles._powers, return_counts=True), [[0.1, 0.5, 1.0], [4, 4, 4]])


def test_they_know_the_way_where_their_weights_are_right_within_a_nat(search):
    particles = Particles(search.chains, ModelPrior(search.model), np.random.default_rng(3))
    particles._powers = np.array([0.0005, 0.01, 0.5, 1.0])
    for log_ratios, are_right in (
        ([1000.0, 100.0, 1.0, 0.5], False),  # by one round
        ([1000.0, 100.0, 1.0], True),  # of a batch that was cut off
        ([0.0, -np.inf, np.nan, -50.0], True),  # what is not there is no mode
        ([0.0, 0.0, 0.0, 4.0], False),
        ([0.0, 0.0, 0.0, 0.0], False),
        ([0.0, 0.0, 0.0, 0.0], True),  # the worst is three rounds ago
        ([0.0, 0.0, 0.0, np.inf], False),
    ):
        particles.take_in(np.array(log_ratios))
        assert particles.know_the_way is are_right


def test_chains_that_go_beyond_the_particles_tell_of_what_these_lack():
    rng = np.random.default_rng(4)
    draws, others = rng.normal(size=(4, 250, 3)), rng.normal(size=(4, 500, 3))
    assert share_beyond(draws, others) < 0.01
    a_few = np.zeros((1, 1000, 3))
    a_few[0, :10] = 9.0
    assert share_beyond(draws, a_few) == pytest.approx(0.01 - 1.0 + (1.0 - 2.0 / 1001.0) ** 3)
    others[:2, :, 1] = 9.0
    assert share_beyond(draws, others) == pytest.approx(0.5, abs=0.01)
    assert share_beyond(draws, -others) == pytest.approx(0.5, abs=0.01)


def test_particles_take_the_place_of_chains_that_do_not_agree(search, prior, given_particles, monkeypatch):
    assert not search.is_divided
    assert (search.best.distance, search.is_confirmed) == (1.0, False)
    assert not search._weigh_modes(prior)
    batch = search.propose(prior, 8)
    assert search.by_particles
    assert set(np.sign(batch.ravel())) == {-1.0, 1.0}
    np.testing.assert_array_equal(search._explored(prior), search.particles.passed)
    search.rounds += search.rounds
    assert search.is_divided  # by particles, too
    assert "where its particles are" in search.problem()
    # Chains go on where no draw of the prior has a density.
    monkeypatch.setattr(chains, "sample_particles", mock.Mock(side_effect=ValueError("zero")))
    search.propose(prior, 8)
    assert not search.by_particles
    assert not search.has_ended


def test_a_search_does_not_end_before_particles_know_the_way(search, prior):
    search.rounds = [r._replace(rhat=1.0) for r in search.rounds]
    search.best, search.is_confirmed, search.by_particles = search.rounds[-1], True, True
    assert not search.has_ended
    assert "it may lack modes" in search.problem()
    search.particles._errors = [np.zeros(8)] * 2
    assert search.has_ended
    assert search.problem() == ""


def test_of_an_improper_prior_there_are_no_particles():
    search = learned_at(with_two_modes(lambda: pm.Flat("a")), PLACES)
    assert not search._weigh_modes(let_chains_disagree(search))
    assert search.is_divided
    assert "Take a proper prior" in search.problem()


def test_the_best_is_of_two_rounds_of_particles_and_what_they_lack_is_a_distance(
    search, prior, given_particles, monkeypatch
):
    """Rounds of chains that did not agree say nothing of these."""
    for is_confirmed in (False, True):
        batch = search.propose(prior, 8)
        add_places(search, batch, ["own"] * len(batch))
        assert search.best.rhat < 1.1
        assert search.is_confirmed is is_confirmed
        assert search.best_is_by_particles
    monkeypatch.setattr(searching, "share_beyond", lambda *_: 0.3)
    monkeypatch.setattr(search, "_held_out_distance", lambda: 0.01)
    search.propose(prior, 8)
    assert search.held_out_alone == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_modes_are_weighed(seed, recwarn):
    with with_two_modes():
        idata = pk.sample_surrogate(random_seed=seed, progressbar=False)
    assert not [w for w in recwarn if "emulated model" in str(w.message)]
    draws, stats_ = idata["posterior"]["a"].values, idata["sample_stats"]
    np.testing.assert_allclose((draws > 0.0).mean(axis=1), mass_above_zero(), atol=0.06)
    np.testing.assert_allclose(np.abs(draws).mean(), 1.985, atol=0.03)
    assert stats_["lp"].shape == draws.shape
    assert stats_["distance"] < 0.05
    assert {"observed_data", "evaluations", "round_stats"} <= set(idata.children)


@pytest.mark.slow
def test_few_draws_of_particles_have_all_variables():
    with with_two_modes() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("z", 0.0, scale, observed=[0.5, -0.4, 0.1])
        pm.Deterministic("twice", 2.0 * model["a"])
        idata = pk.sample_surrogate(2, chains=1, random_seed=1, progressbar=False)
    posterior = idata["posterior"]
    assert posterior["a"].shape == idata["sample_stats"]["lp"].shape == (1, 2)
    np.testing.assert_allclose(posterior["twice"], 2.0 * posterior["a"])
    assert (posterior["scale"] > 0.0).all()


@pytest.mark.slow
def test_who_draws_by_nuts_is_told_of_modes_apart():
    with pytest.warns(UserWarning, match="has modes apart"):
        emulated = pk.emulate(with_two_modes(), random_seed=1, progressbar=False)
    assert emulated.emulation.distance < 0.05
    assert (emulated.emulation.draws > 0.0).mean() == pytest.approx(mass_above_zero(), abs=0.06)
