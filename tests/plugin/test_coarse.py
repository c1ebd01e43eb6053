import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py
from pytensor.graph.replace import vectorize_graph

import pymc_kernel as pk

TIMES = np.array([0.5, 1.0, 2.0, 4.0])
OBSERVED = np.array([0.7, 0.45, 0.3, 0.0])


def true_decay(rate):
    return np.exp(-rate * TIMES) * (1.0 + 0.2 * np.sin(rate))


decay = wrap_py([pt.dscalar], [pt.dvector])(true_decay)


def coarse_decay(rate):
    return pt.exp(-rate * TIMES)


def curve(box, shift=0.0):
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 1.0)
        pm.Normal("y", box(rate), 0.1, observed=OBSERVED - shift)
    return model


def errors(emulated, true):
    """Return true minus emulated log densities at draws of the emulated model, but for a constant."""
    density, learned = (m.compile_logp(mode="FAST_COMPILE") for m in (true, emulated))
    values = [{"rate_log__": x[0]} for x in emulated.emulation.draws[-20:]]
    ratios = np.array([float(density(v)) - float(learned(v)) for v in values])
    return ratios - ratios.mean()


def check_that_little_is_left(true, emulated):
    assert emulated.emulation.distance < 0.05
    assert np.abs(errors(emulated, true)).max() < 0.1


@pytest.fixture(scope="module")
def made():
    """The model and what was learned of it: positive outputs, so that it is a factor."""
    true = curve(decay)
    return true, pk.emulate(true, 40, coarse={decay: coarse_decay}, random_seed=4, progressbar=False)


@pytest.mark.slow  # the last test has both kinds of calls, with draws that are given
def test_how_far_a_coarse_version_is_off_is_learned(made):
    check_that_little_is_left(*made)


@pytest.mark.slow
def test_how_far_a_coarse_version_is_off_is_learned_as_a_difference():
    """Of the same curve moved down: some of its values are negative, and no factor corrects them."""
    shifted = wrap_py([pt.dscalar], [pt.dvector])(lambda rate: true_decay(rate) - 0.5)
    true, coarse = curve(shifted, 0.5), {shifted: lambda rate: coarse_decay(rate) - 0.5}
    check_that_little_is_left(true, pk.emulate(true, 40, coarse=coarse, random_seed=1, progressbar=False))


@pytest.mark.slow
def test_a_search_begins_at_draws_of_the_model_with_cheap_versions(made):
    emulation = made[1].emulation
    first, draws = emulation.positions[:5, 0], emulation.draws[:, 0]
    assert draws.std() < 0.3  # and the prior's standard deviation is one
    assert np.abs(first - draws.mean()).max() < 6.0 * draws.std()


@pytest.mark.long
def test_a_cheap_version_without_a_value_at_draws_of_the_prior_is_left_out_of_the_beginning():
    coarse = {decay: lambda rate: np.nan * coarse_decay(rate)}
    with pytest.raises(ValueError, match="too few to learn from"):
        pk.emulate(curve(decay), 20, coarse=coarse, random_seed=1, progressbar=False)


@pytest.mark.slow
def test_calls_with_and_without_a_coarse_version_are_learned_together(give_draws):
    give_draws([-0.2], 0.15)  # about those of the posterior

    @wrap_py([pt.dscalar], [pt.dvector])
    def other(rate):
        return np.exp(-0.5 * rate * TIMES)

    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 1.0)
        pm.Normal("y", pt.stack([decay(rate), other(rate)]), 0.1, observed=[OBSERVED, OBSERVED**0.5])
    emulated = pk.emulate(model, 60, coarse={decay: coarse_decay}, random_seed=1, progressbar=False)
    check_that_little_is_left(model, emulated)


def test_coarse_versions_that_do_not_fit_are_refused():
    refused = {
        "no black box of this model": {wrap_py([pt.dscalar], [pt.dvector])(lambda r: r): coarse_decay},
        "returns 2 tensors": {decay: lambda rate: [rate, rate]},
        r"an array of shape \(\),": {decay: lambda rate: rate},
        "an array of shape": {decay: lambda rate: pt.exp(-rate * TIMES[:3])},
        "no gradient": {decay: decay},
    }
    for message, coarse in refused.items():
        with pytest.raises(ValueError, match=message):
            pk.emulate(curve(decay), 20, coarse=coarse, progressbar=False)
    with pytest.raises(TypeError, match="coarse must map"):
        pk.emulate(curve(decay), 20, coarse=coarse_decay, progressbar=False)
    rate = pt.dscalar()
    vectorized = curve(lambda r: vectorize_graph(decay(rate), {rate: r[None]})[0])
    with pytest.raises(ValueError, match="vectorized"):
        pk.emulate(vectorized, 20, coarse={decay: coarse_decay}, progressbar=False)
