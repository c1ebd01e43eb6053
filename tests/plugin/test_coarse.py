import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

import pymc_kernel as pk
from tests.plugin.parts import CURVE, QUIET, TIMES, black_box, curve_model


def true_decay(rate):
    return np.exp(-rate * TIMES) * (1.0 + 0.2 * np.sin(rate))


decay = black_box(true_decay)


def coarse_decay(rate):
    return pt.exp(-rate * TIMES)


def check_that_little_is_left(true, emulated):
    """The log densities differ by a constant at draws of the emulated model."""
    assert emulated.emulation.distance < 0.05
    density, learned = (m.compile_logp(mode="FAST_COMPILE") for m in (true, emulated))
    values = [{"rate_log__": x[0]} for x in emulated.emulation.draws[-20:]]
    ratios = np.array([float(density(v)) - float(learned(v)) for v in values])
    assert np.abs(ratios - ratios.mean()).max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("down", [0.0, 0.5])
def test_how_far_a_coarse_version_is_off_is_learned_by_a_search_that_begins_at_its_draws(down):
    """As a factor of positive outputs; as a difference of a curve moved down, which has negative ones, too."""
    box = black_box(lambda rate: true_decay(rate) - down)
    true, coarse = curve_model(box, observed=CURVE - down), {box: lambda rate: coarse_decay(rate) - down}
    emulated = pk.emulate(true, 40, coarse=coarse, random_seed=4, progressbar=False)
    check_that_little_is_left(true, emulated)
    first, draws = emulated.emulation.positions[:5, 0], emulated.emulation.draws[:, 0]
    assert draws.std() < 0.3  # and the prior's standard deviation is one
    assert np.abs(first - draws.mean()).max() < 6.0 * draws.std()


@pytest.mark.long
def test_a_cheap_version_without_a_value_at_draws_of_the_prior_is_left_out_of_the_beginning():
    with pytest.raises(ValueError, match="too few to learn from"):
        pk.emulate(curve_model(decay), 20, coarse={decay: lambda rate: np.nan * coarse_decay(rate)}, **QUIET)


@pytest.mark.slow
def test_calls_with_and_without_a_coarse_version_are_learned_together(give_draws):
    give_draws([-0.2], 0.15)  # about those of the posterior
    other = black_box(lambda rate: np.exp(-0.5 * rate * TIMES))
    model = curve_model(lambda rate: pt.stack([decay(rate), other(rate)]), observed=[CURVE, CURVE**0.5])
    check_that_little_is_left(model, pk.emulate(model, 60, coarse={decay: coarse_decay}, **QUIET))


ROW = pt.dscalar()


@pytest.mark.parametrize(
    ("curve", "coarse", "message"),
    [
        (decay, {black_box(lambda r: r): coarse_decay}, "no black box of this model"),
        (decay, {decay: lambda rate: [rate, rate]}, "returns 2 tensors"),
        (decay, {decay: lambda rate: rate}, r"an array of shape \(\),"),
        (decay, {decay: lambda rate: pt.exp(-rate * TIMES[:3])}, "an array of shape"),
        (decay, {decay: decay}, "no gradient"),
        (decay, coarse_decay, "coarse must map"),
        (lambda rate: vectorize_graph(decay(ROW), {ROW: rate[None]})[0], {decay: coarse_decay}, "vectorized"),
    ],
)
def test_coarse_versions_that_do_not_fit_are_refused(curve, coarse, message):
    with pytest.raises(TypeError if "must" in message else ValueError, match=message):
        pk.emulate(curve_model(curve), 20, coarse=coarse, progressbar=False)
