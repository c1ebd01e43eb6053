from types import SimpleNamespace
from unittest import mock

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.challengers import Challengers
from pymc_kernel.plugin.emulation.emulate import learn
from pymc_kernel.plugin.emulation.emulation import Round
from pymc_kernel.plugin.emulation.model_graph import with_hoisted
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.emulation.structure import unknown_of
from tests.plugin.models import learned_at
from tests.plugin.parts import black_box, data_around

pytestmark = pytest.mark.usefixtures("no_gradients")


def search_with(rounds, tolerance=0.05, may_go_on=True, beyond=(0.0, 0.0, 0.0), held_out=0.03, rhat=1.02):
    """A search that has measured no more than these rounds, of which the last is the best, and held-out places.

    A round is a distance, a standard deviation of the log ratio and R-hat.
    """
    search = Search.__new__(Search)
    search.unknown, search.tolerance = SimpleNamespace(may_go_on=may_go_on), tolerance
    search.estimated, search.noise_share, search.noise_sd = [], 0.0, 0.0
    search.particles, search.by_particles, search.num_by_chains = None, False, 0
    measured = enumerate(zip(rounds, beyond, strict=False))
    search.rounds = [Round(10 * i, d, sd, 1.0, d, r, 0.0, share) for i, ((d, sd, r), share) in measured]
    search.best, search.is_confirmed = search.rounds[-1], True
    search.fits, search.draws, search.best_fits, search.best_draws = "new", "theirs", "old", "its"
    search.challengers = Challengers(None, 1, np.random.default_rng(0))
    search.held_out_alone, search.may_be_left_out, search.rhat = held_out, 0.0, rhat
    return search


@pytest.mark.parametrize(
    ("rounds", "is_divided"),
    [
        ([(0.01, 0.02, 9.0)] * 3, True),
        ([(0.01, 0.02, 9.0)] * 2, False),
        ([(0.01, 0.02, 9.0)] * 2 + [(0.01, 0.02, 1.01)], False),
        # One chain of ten is where the true density is a hundred nats lower.
        ([(0.1, 13.0, 7.0), (0.1, 11.0, 10.0), (0.11, 123.0, 7.0)], False),
        ([(0.3, 0.8, 9.0)] * 3, False),
    ],
)
def test_chains_are_divided_where_all_is_learned_in_each_of_them(rounds, is_divided):
    assert search_with(rounds, tolerance=0.2).is_divided is is_divided


@pytest.mark.parametrize(
    ("beyond", "may_go_on", "has_ended"),
    [
        ((np.nan, 0.0, 0.0), True, True),
        ((0.0, 0.0, 0.1), True, False),
        ((0.0, 0.1, 0.0), True, False),
        ((0.0, 0.0, np.nan), True, False),  # it was not asked
        ((np.nan, np.nan, np.nan), False, True),
    ],
)
def test_a_search_ends_once_two_rounds_found_nothing_beyond_its_draws(beyond, may_go_on, has_ended):
    assert search_with([(0.01, 0.02, 1.0)] * 3, may_go_on=may_go_on, beyond=beyond).has_ended is has_ended


@pytest.mark.parametrize(
    ("held_out", "rhat", "distance", "is_taken"),
    [(0.03, 1.02, 0.03, True), (0.2, 1.02, 0.2, False), (0.03, 1.5, 0.01, False)],
)
def test_last_evaluations_are_learned_where_that_is_no_worse_and_end_a_search(held_out, rhat, distance, is_taken):
    search = search_with([(0.01, 0.02, 1.0)] * 2, held_out=held_out, rhat=rhat)
    assert search._take_in_all() is is_taken
    assert (search.best_fits, search.best_draws) == (("new", "theirs") if is_taken else ("old", "its"))
    assert (search.best.distance, search.best.rhat) == (distance, rhat if is_taken else 1.0)
    assert search.has_ended is is_taken


def test_a_search_does_not_end_before_modes_that_may_be_there_were_evaluated():
    """What chains without the penalty found last is told by one evaluation each."""
    search = search_with([(0.01, 0.02, 1.0)] * 2)
    search.challengers.apart = np.array([[4.0]])
    assert not search._take_in_all()
    assert search.best_fits == "new"
    search.challengers.forget()
    assert search._take_in_all()


@pytest.mark.parametrize("held_out", [0.01, 0.3])
def test_the_distance_is_also_that_at_all_places_like_the_draws(held_out, monkeypatch):
    """Whether or not anything is learned after these."""
    search = search_with([(0.02, 0.02, 1.0)], held_out=held_out, rhat=1.0)
    search.record, search.best, search.is_confirmed = mock.MagicMock(), None, False
    monkeypatch.setattr(Search, "_measured_at_fresh", lambda *_: ((0.02, 0.02, 1.0), np.zeros(0)))
    monkeypatch.setattr(Search, "_take_in_modes", lambda *_: None)
    monkeypatch.setattr(Search, "_found", lambda *_: np.empty(0))
    search.add(np.zeros((2, 1)), [], np.repeat("own", 2))
    assert search.is_confirmed
    assert search.best.distance == max(0.02, held_out)


def test_single_precision_is_refused_by_name():
    with pytensor.config.change_flags(floatX="float32"):
        box = pytensor.wrap_py([pt.fscalar], [pt.fscalar])(np.exp)
        model = data_around(lambda: box(pm.LogNormal("rate")), 0.0)
        with pytest.raises(ValueError, match="rate_log__ have single precision"):
            pk.emulate(model, progressbar=False)


LOG_DENSITY = black_box(lambda x: np.asarray((0.5 * x - np.exp(2.0 * x)).sum()), "v", "s")


def _shifted(value, x):
    return LOG_DENSITY(x) - value**2


LIKELIHOODS = {
    "a potential": (True, lambda x: pm.Potential("loglike", LOG_DENSITY(x))),
    "two potentials": (True, lambda x: pm.Potential("loglike", LOG_DENSITY(x) + LOG_DENSITY(-x))),
    "custom": (True, lambda x: pm.CustomDist("y", x, logp=_shifted, signature="(n)->()", observed=1.0)),
    "half of it": (False, lambda x: pm.Potential("loglike", 0.5 * LOG_DENSITY(x))),
    "normal errors": (False, lambda x: pm.Normal("y", LOG_DENSITY(x), 1.0, observed=0.3)),
    # Its log density has slope one up to the datum, and minus one above.
    "Laplace errors": (False, lambda x: pm.Laplace("y", LOG_DENSITY(x), 1.0, observed=5000.0)),
}


def model_of(likelihood, prior=lambda: pm.Normal("x", 0.0, 2.0, shape=2)):
    with pm.Model() as model:
        likelihood(prior())
    return model


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_term_of_the_log_density_is_learned_as_a_log_likelihood(name, rng):
    expected, likelihood = LIKELIHOODS[name]
    search = learned_at(model_of(likelihood), rng.uniform(-3.0, 4.0, (40, 2)))
    assert [p.is_term for p in search.unknown.parts] == [expected]
    assert (search.fits[0][0][0].span < np.inf) is expected


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_far_from_all_evaluations_a_learned_log_likelihood_falls_but_does_not_rise(sign, rng):
    box = black_box(lambda x: np.asarray(sign * (x @ x)), "v", "s")
    model = model_of(lambda x: pm.Potential("loglike", box(x)), lambda: pm.Flat("x", shape=2))
    search, far = learned_at(model, rng.uniform(-1.0, 1.0, (40, 2))), np.array([[30.0, 0.3], [-30.0, 20.0]])
    expected = search.fits[0][0][0](far)[:, 0]
    assert (expected < (-800.0 if sign < 0.0 else 5.0)).all()
    search.penalty_share.set_value(0.0)
    np.testing.assert_allclose([search.chains.log_density(x) for x in far], expected)


def test_how_far_a_cheap_log_likelihood_is_off_is_no_log_likelihood(rng):
    model = model_of(LIKELIHOODS["a potential"][1])
    cheap = {model["loglike"].owner.op: lambda x: -(x**2).sum()}
    search = learned_at(model, rng.uniform(-3.0, 1.0, (20, 2)), coarse=cheap)
    assert not search.unknown.parts[0].is_term


SUM = np.array([1.0, -0.7, 0.9])


def of_a_sum(x):
    return np.array([np.sin(x @ SUM), np.cos(x @ SUM)])


waves = black_box(of_a_sum, "v")


def of_three(box):
    """A model with one row of three inputs."""
    return data_around(lambda: box(pm.Normal("x", shape=3)), [0.3, 0.9], 0.1)


def test_a_box_with_one_row_is_learned_along_the_directions_in_which_it_changes(rng):
    search = learned_at(model := of_three(waves), places := rng.standard_normal((40, 3)))
    fit = search.fits[0][0][0]
    along = SUM * fit.scale
    assert abs(fit.rotation[:, 0] @ along) > 0.9 * np.linalg.norm(along)
    density, new = model.compile_logp(), np.concatenate([places[:5], 0.5 * rng.standard_normal((20, 3))])
    learned = [search.chains.log_density(x) for x in new]
    np.testing.assert_allclose(learned, [density({"x": x}) for x in new], atol=2.0)


def test_directions_tell_what_is_next_to_a_failure(rng):
    fails = black_box(lambda x: of_a_sum(x) if x @ SUM < 1.0 else np.full(2, np.nan), "v")
    search = learned_at(of_three(fails), places := rng.standard_normal((60, 3)))
    assert not np.allclose(search.fits[0][0][0].rotation, np.eye(3))
    has_density = np.isfinite([search.chains.log_density(x) for x in places])
    np.testing.assert_array_equal(has_density, places @ SUM < 1.0)


def test_several_rows_are_learned_along_their_inputs(rng):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=(2, 3))
        pm.Normal("y", pt.stack([waves(x[0]), waves(x[1])]), 0.3, observed=np.full((2, 2), 0.5))
    search = learned_at(model, rng.standard_normal((30, 6)))
    assert np.array_equal(search.fits[0][0][0].rotation, np.eye(3))


TIMES = np.arange(5.0)


def wave_of(height, rate, phase):
    return height * np.sin(rate * TIMES + phase)


def model_of_waves(kind):
    """A model of one wave, of twelve, or of one whose log likelihood is unknown as a whole."""
    if kind == "twelve":
        box = black_box(lambda rows: wave_of(*rows.T[:, :, None]), "m", "m")
        return data_around(lambda: box(pm.Normal("rows", shape=(12, 3))), np.zeros((12, 5)))
    inputs = lambda: [pm.Normal(name) for name in ("height", "rate", "phase")]  # noqa: E731
    if kind == "one":
        return data_around(lambda: black_box(wave_of, "sss")(*inputs()), np.zeros(5))
    box = black_box(lambda *x: np.asarray(-0.5 * (wave_of(*x) ** 2).sum()), "sss", "s")
    return model_of(lambda x: pm.Potential("y", box(*x)), inputs)


@pytest.mark.parametrize(
    ("kind", "evaluations", "batch_size", "num_places"),
    [
        ("one", 100, None, 30),
        ("one", 100, 4, 30),
        ("one", 40, None, 20),  # half of all
        ("one", 16, None, 10),  # a batch, at least
        ("twelve", 100, None, 10),  # which have 120 rows of a function
        ("log likelihood", 100, None, 10),
        ("log likelihood", 100, 4, 4),
    ],
)
def test_outputs_are_first_learned_from_ten_places_for_each_input(
    kind, evaluations, batch_size, num_places, monkeypatch
):
    seen = []
    monkeypatch.setattr(Search, "run", lambda search, prior, places, *rest: seen.append(places))
    model, rng = with_hoisted(model_of_waves(kind)), np.random.default_rng(0)
    learn(Search(model, unknown_of(model, rng), 0.05, rng), evaluations, batch_size, progressbar=False)
    assert len(np.unique(seen[0], axis=0)) == len(seen[0]) == num_places
