"""Settings and transitions of chains on odd targets: no draw may fail, whatever the log density says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc
from pymc_kernel.scores import Finite, Lite, Nystrom, Values
from tests.fuzz.contract import answered, kept
from tests.fuzz.strategies import arrays, dimensions, powers, seeds

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
@given(
    name=st.sampled_from(list(targets(None, 1.0))),
    rng=seeds(),
    d=st.integers(1, 2),
    scale=powers(),
    num_tune=st.sampled_from([0, 1, 5, 60]),
)
def test_no_target_ends_a_chain(sampler, name, rng, d, scale, num_tune):
    module, config = sampler
    target = targets(rng, scale)[name]
    state = module.init(scale * rng.standard_normal(d), 0.0, config)
    learns = module is not adaptive_metropolis
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
