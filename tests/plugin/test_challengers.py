"""A posterior that may go on where nothing was evaluated, and learned outputs that must end somewhere."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_kernel as pk
from pymc_kernel.plugin.emulation import chains
from pymc_kernel.plugin.emulation.chains import Chains
from pymc_kernel.plugin.emulation.challengers import Challengers, LeftOut, places_beyond
from pymc_kernel.plugin.emulation.emulated_model import limits_of, no_limits
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.model.priors import ModelPrior
from tests.plugin.models import add_places, copied, learned_at, without_gradient
from tests.plugin.parts import QUIET, black_box, data_around

pytestmark = pytest.mark.usefixtures("no_gradients")


def saturated(scale=lambda outputs: outputs):
    """A model whose likelihood is flat on one side, under a prior with heavy tails."""
    box = black_box(lambda a: np.arctan(a) * np.ones(3))
    return data_around(lambda: scale(box(pm.StudentT("a", nu=3, mu=0, sigma=3))), [1.3, 1.6, 1.1], 0.5)


def short_search(places, **settings):
    """A search of this model that has learned from some places."""
    return learned_at(saturated(**settings), np.array(places)[:, None])


@pytest.fixture(scope="module")
def learned_search():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "density_and_gradient", without_gradient)
        search = short_search(np.linspace(-3.0, 3.0, 12))
        assert search.chains  # compiled here, for all copies
    return search


@pytest.fixture
def search(learned_search):
    return copied(learned_search)


@pytest.mark.parametrize("goes_far", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_tail_may_go_on_beyond_the_outermost_evaluation(goes_far, monkeypatch):
    monkeypatch.undo()  # chains move here, and need gradients
    places = np.concatenate([np.linspace(-3.0, 3.0, 6), np.geomspace(3.3, 60.0, 30)[: 30 * goes_far]])
    search, draws = short_search(places), np.linspace(0.5, 3.0, 80).reshape(4, 20, 1)
    distance = search.challengers.note_possible(search.chains, draws, search._versions, 0.05)
    assert (distance > 0.05) is not goes_far
    left_out = search.challengers.left_out.places
    assert (len(left_out) == 0) is goes_far
    assert goes_far or (left_out > 3.0).any()


def asked_of(others, learned, possible):
    """Let challengers have asked for places with these log densities, once each."""
    places = np.zeros((len(learned), 1))
    others.left_out = LeftOut(places, np.array(learned), np.array(possible), np.ones(len(learned), int))


def test_what_may_be_left_out_counts_as_far_as_it_is_real():
    others = Challengers(None, 1, np.random.default_rng(0))
    assert others.real_distance(0.3) == pytest.approx(0.3)  # nothing was evaluated there
    assert others.real_distance(0.0) == 0.0

    def takes_in(found, expected):
        others.take_in(np.array(found))
        assert others.real_share == pytest.approx(expected)

    asked_of(others, np.log(np.full(4, 0.1)), np.log(np.full(4, 1.1)))
    takes_in([-np.inf, np.nan, np.log(0.1), np.log(0.05)], 0.5 / 5.0)
    takes_in(np.log([1.1, 2.0, 0.6, 0.6]), 3.5 / 9.0)  # more than may be there counts as that
    takes_in(np.log([0.6, 0.6]), 4.5 / 9.0)  # of the latest eight, in a batch that was cut off
    others.left_out = others.left_out._replace(times_drawn=np.array([4, 0, 0, 0]))
    takes_in(np.log([1.1]), 6.5 / 9.0)
    asked_of(others, np.log([0.1, 0.6]), np.log([1.1, 0.6]))  # one may have no more than is learned there
    takes_in(np.log([1.1, 0.6]), 7.0 / 9.0)
    # Mass of 9 beside one that is learned, of which two thirds are there: six of seven.
    others._real_shares = np.array([1.0, 0.5])
    assert others.real_distance(0.9) == pytest.approx(6.0 / 7.0)


def test_places_are_asked_for_by_the_mass_that_they_may_have():
    others, places = Challengers(None, 1, np.random.default_rng(0)), np.arange(5.0)[:, None]
    learned = np.log([0.2, 0.2, 0.006, 0.194, 0.4])
    others._choose(places, np.maximum(0.2 - np.exp(learned), 0.0), learned, np.log(np.full(5, 0.2)))
    assert others.left_out.times_drawn.sum() == 4
    assert set(others.left_out.places[:, 0]) <= {2.0, 3.0}
    np.testing.assert_allclose(others.left_out.learned, learned[others.left_out.places[:, 0].astype(int)])


def learn(search, places, kinds):
    """Let a search learn from a round with places of such kinds."""
    search.explorers = SimpleNamespace(set_power=lambda errors: None)
    search.rhat = 1.0
    add_places(search, np.array(places)[:, None], kinds)


def test_places_left_out_are_told_from_the_others_of_a_round(search):
    others, density = search.challengers, search.model.compile_logp(mode="FAST_COMPILE")
    levels = np.array([float(density({"a": x})) for x in (6.0, 8.0)])
    asked_of(others, levels - 2.0, levels + 1.0)
    others.left_out = others.left_out._replace(places=np.array([[6.0], [8.0]]))
    others.apart = np.array([[0.9]])
    others._compared = np.zeros((4, 20, 1)), np.zeros((1, 20, 1))
    search.chains.go_to(np.zeros((4, 1)))
    kinds = ["own", "own", "explored", "apart", "left_out", "left_out"]
    learn(search, [1.0, 1.2, -1.0, 0.9, 6.0, 8.0, -1.0], kinds)
    real = (1.0 - np.exp(-2.0)) / (np.exp(1.0) - np.exp(-2.0))
    assert others.real_share == pytest.approx((0.5 + 2.0 * real) / 3.0)


@pytest.mark.parametrize("further", [0.5, -0.5, 0.15])
def test_places_beyond_stay_on_a_ridge(further):
    rng, sign = np.random.default_rng(1), np.sign(further)
    x = rng.normal(2.0, 1.0, 2000)
    y = np.where(x > 2.0, (x - 2.0) ** 2, 0.0) + 0.01 * rng.normal(size=len(x))
    places = places_beyond(np.column_stack([x, y]), further)
    outermost = (sign * x).max() * sign
    expected = outermost + abs(further) * (outermost - np.median(x))
    assert places[0, 0] == pytest.approx(expected)
    assert places[0, 1] == pytest.approx((expected - 2.0) ** 2 if further > 0.0 else 0.0, abs=0.1)
    alone = places_beyond(np.linspace(0.0, 10.0, 11)[:, None], further)
    assert alone[0, 0] == pytest.approx(5.0 + sign * 5.0 * (1.0 + abs(further)))
    assert np.isfinite(places_beyond(np.zeros((5, 2)), further)).all()


def ask_beyond(search, places, num_evaluated):
    """Let a search learn from a round with such places, of which so many are evaluated; return the share found."""
    search.challengers.forget()
    search.challengers.beyond = np.array(places)[:, None]
    learn(search, [1.0, 1.2, -1.0, *places[:num_evaluated]], ["own", "own", "explored", *["beyond"] * num_evaluated])
    return search.rounds[-1].beyond


def test_a_tail_beyond_the_draws_is_found(search):
    assert ask_beyond(search, [], 0) == 0.0
    assert np.isnan(ask_beyond(search, [6.0, -20.0], 1))  # a batch that was cut off
    assert ask_beyond(search, [6.0, -20.0], 2) == 0.5  # the likelihood is flat above
    assert not search.has_ended


def test_places_beyond_are_asked_where_what_is_learned_has_no_draws(search):
    draws, others = np.linspace(0.0, 4.0, 51)[:, None], search.challengers
    places = [4.3, 5.0, -0.3, -1.0]  # near above and far, then below
    levels = [search.chains.log_density(np.array([x])) for x in places]
    asked = []
    for _ in range(2):
        others.note_beyond(search.chains, draws, max(levels) + 1.0)
        asked += others.beyond.ravel().tolist()
    assert asked == pytest.approx(places)
    for _ in range(2):
        others.note_beyond(search.chains, draws, min(levels) - 1.0)
        assert len(others.beyond) == 0


def test_challengers_that_do_not_agree_by_chance_are_looked_at_again(search, monkeypatch):
    """Fifty draws of a chain that has just begun may be anywhere; those after them are not."""
    rng = np.random.default_rng(2)
    good, bad = rng.normal(size=(4, 40, 1)), rng.normal(3.0, 1.0, (4, 40, 1))
    looks = iter([bad, good, good])  # of challengers, of the chains of the search, of challengers again
    monkeypatch.setattr(Chains, "draw", lambda *_, **__: (next(looks), 1.0))
    draws, rhat = search.challengers.challenge(search.chains, good, np.zeros((6, 1)), True)
    assert rhat < 1.1
    assert draws.shape == (4, 80, 1)


@pytest.mark.parametrize("is_proper", [False, True])
def test_challengers_keep_the_penalty_where_the_prior_is_improper(search, monkeypatch, is_proper):
    """What was learned of eight places of a normal density, beside a flat prior, let them run to a billion."""
    rng, penalties = np.random.default_rng(2), []
    draws, others = rng.normal(size=(4, 40, 1)), rng.normal(9.0, 1.0, (6, 40, 1))

    def draw(chains, **_):
        penalties.append(float(search.penalty_share.get_value()))
        return (draws if chains is search.chains else others), 1.0

    monkeypatch.setattr(Chains, "draw", draw)
    found, rhat = search.challengers.challenge(search.chains, draws, np.zeros((6, 1)), is_proper)
    assert penalties == ([0.0, 1.0, 0.0] if is_proper else [1.0, 1.0, 1.0])
    assert (len(found), len(search.challengers.apart)) == ((4, 6) if is_proper else (10, 0))
    assert (rhat == 0.0) is is_proper


@pytest.mark.parametrize(("held_out", "is_challenged"), [(0.01, 1), (0.3, 0)])
def test_draws_of_challengers_are_evaluated(search, monkeypatch, held_out, is_challenged):
    def challenge(chains, draws, *_):
        return np.concatenate([draws, np.full((6, *draws.shape[1:]), 77.0)]), 1.5

    monkeypatch.setattr(search.challengers, "challenge", challenge)
    monkeypatch.setattr(search.challengers, "note_possible", lambda *_: 0.2)
    monkeypatch.setattr(search, "_held_out_distance", lambda: held_out)
    monkeypatch.setattr(Chains, "draw", lambda *_, **__: (np.ones((4, 20, 1)), 1.0))
    batch = search.propose(ModelPrior(search.model), 10)
    assert (batch == 77.0).any() == (77.0 in search.draws) == is_challenged
    assert search.rhat == (1.5 if is_challenged else 1.0)
    assert (search.challengers.beyond is not None) == is_challenged
    assert search.held_out == (0.2 if is_challenged else 0.3)


def test_versions_of_a_place_are_those_of_its_outputs(search):
    at_learned, at_far = (search._versions(np.array([x]), 200) for x in (1.5, 20.0))
    np.testing.assert_allclose(at_learned, search.chains.log_density(np.array([1.5])), atol=0.1)
    assert at_far.std() > 10.0 * at_learned.std()


@pytest.mark.slow
def test_versions_without_a_density_are_minus_infinity():
    """Outputs that may be too low for a model that takes their logarithms, where no limit is known."""
    search = short_search(np.linspace(-3.0, 3.0, 6), scale=lambda outputs: pt.log(outputs + 2.0))
    limits = search.learned[0].limits
    limits.set_value(no_limits(limits.get_value().shape[1:]))
    versions = search._versions(np.array([40.0]), 200)
    assert not np.isnan(versions).any()
    assert np.isneginf(versions).any()
    draws = np.linspace(0.5, 3.0, 80).reshape(4, 20, 1)
    assert np.isfinite(search.challengers.note_possible(search.chains, draws, search._versions, 0.05))


def test_a_power_tempers_the_likelihood_alone_and_places_are_exchanged_by_the_ratio_of_both_densities():
    """Two chains of a normal model, and two with a quarter of its likelihood."""
    model, rng = data_around(lambda: pm.Normal("x", 0.0, 3.0), 2.0), np.random.default_rng(1)
    chains = Chains(model)
    chains.begin(np.zeros((2, 1)), np.ones(1), rng)
    explorers = chains.tempered(np.zeros((2, 1)), np.ones(1), rng)
    explorers.set_power(0.25)
    prior, likelihood = stats.norm(0.0, 3.0).logpdf(0.7), stats.norm(2.0, 1.0).logpdf(0.7)
    found = [of.log_density(np.array([0.7])) for of in (chains, explorers)]
    assert found == pytest.approx([prior + likelihood, prior + 0.25 * likelihood])

    def exchanged(*places):
        for of, place in zip((chains, explorers), places, strict=True):
            of.go_to(np.full((2, 1), place))
        chains.exchange(explorers, rng)
        return chains.places[:, 0], explorers.places[:, 0]

    found = exchanged(-3.0, 2.0)  # the likelihood is larger where the explorers are
    np.testing.assert_array_equal(found, [[2.0, 2.0], [-3.0, -3.0]])
    count = sum((exchanged(2.0, 1.0)[0] == 1.0).sum() for _ in range(500))
    probability = np.exp(0.75 * -0.5)
    assert count / 1000 == pytest.approx(probability, abs=4.0 * np.sqrt(probability * (1.0 - probability) / 1000))


# -- outputs that end somewhere ---------------------------------------------------------------------

KNOWN = np.array([[[0.2, 3.0]], [[0.9, 7.0]], [[0.3, 4.0]]])


def asked(*is_inside):
    """Whether places have a density, and how often they were asked."""
    calls = []

    def has_density(rows):
        calls.append(rows.copy())
        return np.array([bool(np.all(inside(own))) for own, inside in zip(rows, is_inside, strict=True)])

    return has_density, calls


INF, TWO, SHARES = np.inf, [[[0.2, 0.2]], [[0.9, 0.9]]], [[[0.2, 0.8]], [[0.6, 0.4]], [[0.1, 0.9]]]
ENDS = {  # where rows have a density; places that have one; lowest and highest values
    "limits": (
        [lambda rows: (rows[0, 0] > 0.0) & (rows[0, 0] < 1.0) & (rows[0, 1] >= -0.5)], KNOWN, [0.0, -0.5], [1.0, INF]
    ),
    "another": ([lambda rows: (rows[0, 0] >= -0.3) & (rows[0, 1] >= 0.1)], TWO, [-0.3, 0.1], [INF, INF]),
    "bound": ([lambda rows: rows[0, 0] > 0.0, lambda rows: rows[0, 0] > 0.1], KNOWN, [-INF, -INF], [INF, INF]),
    "sum": ([lambda rows: abs(rows.sum() - 1.0) < 1e-5] * 2, SHARES, [-INF, -INF], [INF, INF]),
}  # fmt: skip


@pytest.mark.parametrize(("is_inside", "known", "lowest", "highest"), ENDS.values(), ids=ENDS)
def test_limits_are_where_the_density_ends(is_inside, known, lowest, highest):
    """A bound that is another one at another place is no limit, nor is a sum that must be one."""
    has_density, _ = asked(*is_inside)
    known = np.array(known)
    at = known[: len(is_inside)]
    for found, end in zip(limits_of(has_density, at, known), (lowest, highest), strict=True):
        np.testing.assert_allclose(found.ravel(), end, atol=1e-15, rtol=1e-15)
        assert has_density(np.where(np.isfinite(end), found, at)).all()


def test_few_questions_are_asked():
    """Two where there are no limits; that of one output is tried on the next."""
    has_density, calls = asked(lambda rows: True)
    limits = limits_of(has_density, KNOWN[:1], KNOWN)
    assert len(calls) == 2
    np.testing.assert_array_equal(limits, [[[-np.inf] * 2], [[np.inf] * 2]])
    known = np.array([np.linspace(0.1, 0.3, 40), np.linspace(0.7, 0.9, 40)])[:, None]
    has_density, calls = asked(lambda rows: rows > 0.0)
    limits = limits_of(has_density, known[:1], known)
    assert (limits[0] == limits[0][0, 0]).all()
    assert len(calls) == 1 + 2 * 40 + 52 + 2 * 39 + 1


SUCCESSES = np.array([0, 1, 3, 15, 19, 20])
DOSES = np.linspace(-2.0, 2.0, len(SUCCESSES))


def logistic_model():
    """Probabilities from a black box, nearly all of which are zero or one at most places."""
    box = black_box(lambda a: special.expit(3.0 * (DOSES - a)))
    with pm.Model() as model:
        pm.Binomial("y", 20, box(pm.Normal("a", 0.0, 2.0)), observed=SUCCESSES)
    return model


def test_learned_probabilities_have_a_density_everywhere():
    search = learned_at(logistic_model(), np.linspace(-4.0, 4.0, 7)[:, None])
    places = np.linspace(-6.0, 6.0, 25)[:, None]
    assert np.isfinite([search.chains.log_density(x) for x in places]).all()
    versions = [search.given.versions(x, search._inputs_at(x), search.fits, 20, search.rng) for x in places]
    assert np.isfinite(versions).all()
    search.learned[0].limits.set_value(no_limits((1, len(SUCCESSES))))
    assert not np.isfinite([search.chains.log_density(x) for x in places]).all(), "else this shows nothing"


@pytest.mark.long
def test_chains_begin_where_the_emulated_model_has_a_density(monkeypatch):
    monkeypatch.setattr(Search, "_find_limits", lambda self: None)
    search = learned_at(logistic_model(), np.linspace(-4.0, 4.0, 7)[:, None])
    has_density = np.isfinite([search.chains.log_density(x) for x in search.record.best_places(7)])
    assert not has_density[:4].all(), "else this shows nothing"
    assert np.isfinite([search.chains.log_density(x) for x in search._best_places()]).all()
    search.learned[0].limits.set_value(np.full((2, 1, len(SUCCESSES)), 1.5))
    assert len(search._best_places()) == 0, "probabilities above one"
    assert search.propose(ModelPrior(search.model), 4).shape == (4, 1)
    add_places(search, np.zeros((1, 1)))  # nothing is measured, as nothing was drawn
    assert not search.rounds
    with pytest.raises(ValueError, match=r"8 evaluations are too few .* no density at any"):
        search.result()


@pytest.mark.slow
def test_probabilities_of_a_black_box_stay_probabilities():
    emulated = pk.emulate(logistic_model(), random_seed=3, progressbar=False)
    assert emulated.emulation.distance < 0.05
    idata = pm.sample(500, tune=500, chains=2, cores=1, model=emulated, **QUIET)
    grid = np.linspace(-1.0, 2.0, 3001)
    likelihood = stats.binom.logpmf(SUCCESSES[:, None], 20, special.expit(3.0 * (DOSES[:, None] - grid)))
    log_density = likelihood.sum(axis=0) - 0.5 * (grid / 2.0) ** 2
    below = np.cumsum(np.exp(log_density - log_density.max()))
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    draws = idata["posterior"]["a"].values.ravel()
    shares = [(draws <= q).mean() for q in np.interp(levels, below / below[-1], grid)]
    np.testing.assert_allclose(shares, levels, atol=0.08)
    assert idata["sample_stats"]["diverging"].sum() < 10
