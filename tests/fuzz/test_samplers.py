"""Settings and transitions of chains and particles on odd targets: nothing may fail, whatever a log density says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import smc
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc
from pymc_kernel.scores import Finite, Lite, Nystrom, Values
from pymc_kernel.smc import normalized, population
from tests.fuzz.strategies import answered, arrays, dimensions, kept, powers, seeds, sizes

NAMES = ("position", "log density", "covariance", "length_scale")
SAMPLERS = {
    "walk": (adaptive_metropolis, adaptive_metropolis.Config()),
    "walk of fixed shape": (adaptive_metropolis, adaptive_metropolis.Config(learn_covariance=False, noisy=True)),
    "Kameleon": (kameleon, kameleon.Config(num_basis=20)),
    "Kameleon as in the thesis": (kameleon, kameleon.Config(num_basis=20, gamma=0.2, whiten=False)),
    "values": (kernel_hmc, kernel_hmc.Config(Values(max_iterations=2), max_steps=3)),
    "lite": (kernel_hmc, kernel_hmc.Config(Lite(), max_steps=3)),
    "finite": (kernel_hmc, kernel_hmc.Config(Finite(num_features=10), max_steps=3, noisy=True)),
    "nystrom": (kernel_hmc, kernel_hmc.Config(Nystrom(num_basis=3), max_steps=3)),
}


def targets(rng, scale):
    """Log densities, most of them no density's."""
    return {
        "normal": lambda x: -0.5 * float(((np.clip(x / scale, -1e10, 1e10)) ** 2).sum()),
        "constant": lambda x: 0.0,
        "nowhere else": lambda x, seen=[]: seen.append(0) or (0.0 if len(seen) == 1 else -np.inf),
        "NaN": lambda x: np.nan if rng.random() < 0.5 else -abs(float(np.clip(x / scale, -1e3, 1e3)[0])),
        "always NaN": lambda x: np.nan,
        "infinite": lambda x: np.inf if rng.random() < 0.3 else float(rng.normal()),
        "huge": lambda x: float(rng.choice([-1e150, 1e150])),
        "two values": lambda x: float(rng.integers(2)),
    }


SLOW = {"finite", "nystrom"}  # one estimator by score matching is enough for every run


@pytest.mark.parametrize(
    "sampler", [pytest.param(s, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, s in SAMPLERS.items()]
)
@given(name=st.sampled_from(list(targets(None, 1.0))), rng=seeds(), d=st.integers(1, 2), scale=powers(), data=st.data())
def test_no_target_ends_a_chain(sampler, name, rng, d, scale, data):
    module, config = sampler
    target = targets(rng, scale)[name]
    state = module.init(scale * rng.standard_normal(d), 0.0, config)
    learns, num_tune = module is not adaptive_metropolis, data.draw(st.sampled_from([0, 1, 5, 60]))
    for _ in range(num_tune + 5):
        state, info = module.step(rng, state, target, config)
        assert np.isfinite(state.position).all()
        assert np.isfinite(state.log_density)
        assert 0.0 <= info.accept_prob <= 1.0
        state = module.adapt(rng, state, info, config, num_tune) if learns else module.adapt(state, info, config)


@pytest.mark.parametrize("module", [adaptive_metropolis, kameleon, kernel_hmc])
@given(data=st.data(), d=dimensions(), level=st.floats())
def test_starts(module, data, d, level):
    position = data.draw(arrays((d,)))
    state = answered(lambda: module.init(position, level, module.Config()), NAMES)
    if state is not None:
        assert state.position.dtype == float
        np.testing.assert_array_equal(state.position, np.asarray(position, dtype=float))
        place = data.draw(arrays((data.draw(st.sampled_from([d, d, d, 4])),)))
        moved = answered(lambda: module.relocate(state, place, level), NAMES)
        assert moved is None or moved.position.shape == (d,)


@given(data=st.data(), d=st.integers(1, 3))
def test_covariances(data, d):
    given_covariance = data.draw(arrays((d, data.draw(st.sampled_from([d, d, 2])))))
    config = kept(lambda: adaptive_metropolis.Config(covariance=given_covariance), NAMES)
    if config is not None:
        state = answered(lambda: adaptive_metropolis.init(np.zeros(d), 0.0, config), NAMES)
        if state is not None:
            covariance = np.tril(np.asarray(given_covariance, dtype=float))
            found = np.tril(state.factor @ state.factor.T)
            np.testing.assert_allclose(found, covariance, atol=1e-10 * np.abs(covariance).max())


OF_PARTICLES = (
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
    state = answered(lambda: smc.init(smc.Evaluated(x, *evaluate(x))), OF_PARTICLES)
    if state is None:
        return
    found = answered(lambda: smc.step(rng, state, evaluate, config)[0], OF_PARTICLES)
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
    state = kept(lambda: population.init(rng, x, weights), OF_PARTICLES)
    if state is None:
        return
    for _ in range(3):
        found = kept(lambda s=state: population.step(rng, s, lambda y: numbers(rng, y, kind), config), OF_PARTICLES)
        if found is None:
            return
        state = found[0]
    found = kept(lambda: normalized(state.log_weights), OF_PARTICLES)
    assert found is None or abs(found.sum() - 1.0) < 1e-9
    kept(lambda: population.forget(rng, state, n), OF_PARTICLES)


@given(scale=powers(), rng=seeds(), d=st.integers(1, 3))
def test_units_of_particles_do_not_matter(scale, rng, d):
    x = scale * rng.standard_normal((20, d))
    state = smc.init(smc.Evaluated(x, np.zeros(20), np.zeros(20)))
    flat = np.zeros(20), np.zeros(20)
    found = answered(lambda: smc.step(rng, state, lambda y: flat, smc.Config(smc.Walk())), OF_PARTICLES)
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
