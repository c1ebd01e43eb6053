"""A posterior that may go on where nothing was evaluated."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

from tests.plugin.models import add_places, searched_at

DATA = np.array([1.3, 1.6, 1.1])


def saturated(scale=lambda outputs: outputs):
    """Return a model whose likelihood is flat on one side, under a prior with heavy tails."""
    with pm.Model() as model:
        a = pm.StudentT("a", nu=3, mu=0, sigma=3)
        box = wrap_py([pt.dscalar], [pt.dvector])(lambda a: np.arctan(a) * np.ones(3))
        pm.Normal("y", scale(box(a)), 0.5, observed=DATA)
    return model


@pytest.fixture
def short_search(short_blocks):
    """A search of this model that has learned from some places."""

    def at_places(places, model=None):
        return searched_at(model or saturated(), np.array(places)[:, None])

    return at_places


@pytest.mark.parametrize("goes_far", [False, True])
def test_a_tail_may_go_on_beyond_the_outermost_evaluation(short_search, goes_far):
    search = short_search(np.concatenate([np.linspace(-3.0, 3.0, 6), np.geomspace(3.3, 60.0, 30)[: 30 * goes_far]]))
    draws, _ = search.chains.draw(is_short=True)
    search.challengers.forget()
    distance = search.challengers.note_possible(search.chains, draws, search._versions, 0.05)
    assert (distance > 0.05) is not goes_far
    left_out = search.challengers.left_out
    assert len(left_out) == (0 if goes_far else 4)
    assert goes_far or (left_out > 3.0).any()


def test_what_may_be_left_out_counts_as_far_as_it_is_real(short_search):
    search = short_search(np.linspace(-3.0, 3.0, 6))
    others = search.challengers
    draws, _ = search.chains.draw(is_short=True)
    search.may_be_left_out = others.note_possible(search.chains, draws, search._versions, 0.05)
    search.held_out_alone = 0.01
    assert search.held_out == search.may_be_left_out  # nothing was evaluated there
    learned = np.array([search.chains.log_density(x) for x in others.left_out])
    others.take_in(np.array([-np.inf, np.nan, *learned[2:]]))
    assert others.real_share == 0.0
    assert search.held_out == 0.01
    most = np.logaddexp(learned, others._possible)  # more than may be there counts as that
    others.take_in(most)
    assert others.real_share == pytest.approx(0.5)
    half = np.logaddexp(learned, others._possible) - np.log(2.0)
    others.take_in(half)
    others.take_in(half[:3])
    assert others.real_share == pytest.approx((1.0 + 7 * 0.5) / 8)  # of the latest eight


def test_places_left_out_are_told_from_the_others_of_a_round(short_search):
    search = short_search(np.linspace(-3.0, 3.0, 12))
    others, density = search.challengers, search.model.compile_logp(mode="FAST_COMPILE")
    others.left_out = np.array([[6.0], [8.0]])
    levels = np.array([float(density({"a": x})) for (x,) in others.left_out])
    others._learned, others._possible = levels - 2.0, levels + 1.0
    search.num_own = 3
    add_places(search, np.array([[1.0], [1.2], [0.9], [6.0], [8.0], [-1.0]]))
    assert others.real_share == pytest.approx((1.0 - np.exp(-2.0)) / (np.exp(1.0) - np.exp(-2.0)))


def test_versions_of_a_place_are_those_of_its_outputs(short_search):
    search = short_search(np.linspace(-3.0, 3.0, 12))
    learned, far = np.array([1.5]), np.array([20.0])
    at_learned, at_far = (
        search.given.versions(x, search._inputs_at(x), search.fits, 200, search.rng) for x in (learned, far)
    )
    expected = search.chains.log_density(learned)
    np.testing.assert_allclose(at_learned, expected, atol=0.1)
    assert at_far.std() > 10.0 * at_learned.std()


def test_versions_without_a_density_are_minus_infinity(short_search):
    """Outputs that may be too low for a model that takes their logarithms, where no limit is known."""
    search = short_search(np.linspace(-3.0, 3.0, 6), saturated(lambda outputs: pt.log(outputs + 2.0)))
    search.learned[0].clear_limits()
    versions = search.given.versions(
        np.array([40.0]), search._inputs_at(np.array([40.0])), search.fits, 200, search.rng
    )
    assert not np.isnan(versions).any()
    assert np.isneginf(versions).any()
    draws, _ = search.chains.draw(is_short=True)
    assert np.isfinite(search.challengers.note_possible(search.chains, draws, search._versions, 0.05))
