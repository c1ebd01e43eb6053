"""Tempering, moves, population Monte Carlo and weights of particles on every kind of array and odd targets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import smc
from pymc_kernel.scores import Finite, Lite, Values
from pymc_kernel.smc import normalized, population
from tests.fuzz.contract import answered, kept
from tests.fuzz.strategies import arrays, dimensions, powers, seeds, sizes

NAMES = (
    "particles", "positions", "log_weights", "log_likelihood", "log_prior", "moves", "threshold", "schedule",
    "density", "draw", "coordinates", "log_density",
)  # fmt: skip
MOVES = {
    "walk": smc.Walk(),
    "plain walk": smc.Walk(learn_covariance=False, scale=1.0),
    "Kameleon": smc.Kameleon(),
    "values": smc.Hamiltonian(Values(max_iterations=2), max_steps=2),
    "lite": smc.Hamiltonian(Lite(), max_steps=2),
}


def numbers(rng, x, kind):
    """Return a log density (n,) of places that is constant, normal, or something worse for some of them."""
    values = {"constant": np.zeros(len(x)), "normal": -0.5 * (np.clip(x, -1e10, 1e10) ** 2).sum(axis=1)}.get(kind)
    if values is None:
        values = rng.standard_normal(len(x))
        values[rng.random(len(x)) < 0.5] = {"nan": np.nan, "minus": -np.inf, "plus": np.inf, "huge": -1e150}[kind]
    return values


KINDS = ["constant", "normal", "normal", "nan", "minus", "plus", "huge"]


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
@given(data=st.data(), rng=seeds(), prior=st.sampled_from(KINDS), likelihood=st.sampled_from(KINDS))
def test_stages(moves, data, rng, prior, likelihood):
    n, d = data.draw(st.sampled_from([0, 1, 2, 5, 12, 12])), data.draw(st.sampled_from([1, 2]))
    x = np.reshape(np.asarray(data.draw(arrays((n, d))), dtype=float), (n, d))

    def evaluate(places):
        return numbers(rng, places, prior), numbers(rng, places, likelihood)

    config = smc.Config(moves, max_moves=4, num_folds=data.draw(st.sampled_from([1, 2, 4])))
    state = answered(lambda: smc.init(smc.Evaluated(x, *evaluate(x))), NAMES)
    if state is None:
        return
    found = answered(lambda: smc.step(rng, state, evaluate, config)[0], NAMES)
    if found is not None:
        assert np.isfinite(found.particles.positions).all()
        assert 0.0 < found.inverse_temperature <= 1.0


@given(data=st.data(), d=dimensions(), rng=seeds(), kind=st.sampled_from(KINDS))
def test_population(data, d, rng, kind):
    n = data.draw(sizes(0, 6))
    x, weights = data.draw(arrays((n, d))), data.draw(arrays((data.draw(st.sampled_from([n, n, n, 2])),)))
    config = population.Config(
        drift=data.draw(st.sampled_from(["kernel", "none", lambda y: np.full_like(y, np.nan)])),
        weights=data.draw(st.sampled_from(["mixture", "own"])),
        surrogate=Finite(num_features=5),
    )
    state = kept(lambda: population.init(rng, x, weights), NAMES)
    if state is None:
        return
    for _ in range(3):
        found = kept(lambda s=state: population.step(rng, s, lambda y: numbers(rng, y, kind), config), NAMES)
        if found is None:
            return
        state = found[0]
    found = kept(lambda: normalized(state.log_weights), NAMES)
    assert found is None or abs(found.sum() - 1.0) < 1e-9
    kept(lambda: population.forget(rng, state, n), NAMES)


@given(scale=powers(), rng=seeds(), d=st.integers(1, 3))
def test_units_of_particles_do_not_matter(scale, rng, d):
    x = scale * rng.standard_normal((20, d))
    state = smc.init(smc.Evaluated(x, np.zeros(20), np.zeros(20)))
    found = answered(
        lambda: smc.step(rng, state, lambda y: (np.zeros(20), np.zeros(20)), smc.Config(smc.Walk())), NAMES
    )
    assert found is not None or abs(np.log10(scale)) > 100


def vectors():
    return sizes().flatmap(lambda n: arrays((n,)))


@given(vectors())
def test_means_and_shares(logs):
    total = kept(lambda: smc.log_mean_exp(logs), ("log_values",))
    if total is not None:
        logs = np.asarray(logs, dtype=float)
        rounding = 1e-9 * abs(logs.max())
        assert logs.max() - np.log(logs.size) - rounding <= total <= logs.max() + rounding
    share = kept(lambda: smc.effective_share(logs), ("log_weights",))
    assert share is None or share == 0.0 or 1.0 / np.size(logs) - 1e-9 <= share <= 1.0 + 1e-9
    weights = kept(lambda: smc.normalized(logs), ("log_weights",))
    assert weights is None or abs(weights.sum() - 1.0) < 1e-9


@given(logs=vectors(), where=st.sampled_from([0.0, 0.5, 1.0, -1.0, np.nan]), wanted=st.floats())
def test_temperatures(logs, where, wanted):
    names = ("log_likelihood", "inverse_temperature", "wanted_share")
    found = kept(lambda: smc.next_temperature(logs, where, wanted), names)
    assert found is None or where <= found <= 1.0


@given(rng=seeds(), weights=vectors(), size=st.integers(-1, 9))
def test_resampling(rng, weights, size):
    found = kept(lambda: smc.resample(rng, weights, size), ("weights", "size"))
    if found is not None:
        assert len(found) == size
        assert (np.diff(found) >= 0).all()
        assert (np.asarray(weights, dtype=float)[found] > 0).all()
