import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.reports import model_draws


def test_the_same_data_in_another_precision_are_no_other_data():
    for stored, known, is_other in (
        (np.array([1.1, 2.0], np.float32), [1.1, 2.0], False),
        (np.array([1.1, np.nan]), [1.1, np.nan], False),
        (np.array([1.1 + 1e-6, 2.0]), [1.1, 2.0], True),
        (np.array([1.1]), [1.1, 2.0], True),
        (np.array([10**7 + 1, 2]), [10**7, 2], True),
        (np.array(["mon", "tue"]), [0.0, 1.0], True),
        (np.array([1.0, None, np.nan], object), [1.0, None, np.nan], False),
        (np.array([1, 2], "M8[D]"), [1.0, 2.0], True),
    ):
        assert model_draws._are_same(stored, np.array(known)) is not is_other


@pytest.mark.parametrize("group", ["observed_data", "constant_data"])
def test_draws_of_other_data_are_said(group, rng, recwarn):
    with pm.Model() as model:
        predictors, data = pm.Data("a", [1.0, 2.0]), pm.Data("b", [1.0, 3.0])
        x = pm.Normal("x")
        pm.Normal("y", x * predictors, 1.0, observed=data)
    name, held = ("y", [1.0, 3.0]) if group == "observed_data" else ("a", [1.0, 2.0])
    draws = {"posterior": {"x": rng.normal(1.0, 0.6, (4, 50))}}
    settings = {"model": model, "num_replicates": 10}
    pk.ksd_test(az.from_dict(draws | {group: {name: np.array(held)}}), **settings)
    pk.ksd_test(az.from_dict(draws), **settings)
    other = az.from_dict(draws | {group: {name: np.array(held) + 1.0}})
    pk.ksd_test(other, score=lambda x: -x, **settings)  # perhaps that of another distribution
    assert not recwarn
    pk.ksd_test(other, **settings)
    pk.summary(other, **settings)
    pk.plot_ksd(other, backend="none", **settings)
    said = [w for w in recwarn if f"other data for {name} " in str(w.message)]
    assert [w.filename for w in said] == [__file__] * 3


def test_data_that_the_posterior_does_not_depend_on_and_rounding_are_no_other_data(rng, recwarn):
    with pm.Model() as model:
        grid, times, raw = pm.Data("grid", [0.0, 1.0]), pm.Data("times", [1.0, 2.0]), pm.Data("raw", [10.1, 12.0])
        x = pm.Normal("x")
        pm.Deterministic("curve", x * grid)
        pm.Normal("y", x * times, 1.0, observed=raw - raw.mean())
    groups = {
        "posterior": {"x": rng.normal(1.0, 0.6, (4, 50))},
        "observed_data": {"y": np.array([-0.95, 0.95]) * (1.0 + 1e-12)},
        "constant_data": {"grid": np.arange(9.0), "times": np.array([1.0, 2.0])},
    }
    model_draws._warn_of_other_data(az.from_dict(groups), model)
    assert not recwarn
    groups["observed_data"]["y"] = np.array([-0.94, 0.95])
    with pytest.warns(UserWarning, match="other data for y than"):
        model_draws._warn_of_other_data(az.from_dict(groups), model)


def test_offsets_that_were_left_out_follow_from_effects_that_are_not_bent_or_mixed(rng):
    """As of Bambi's models, whose draws have the effects of groups, but not their offsets."""
    others = {"bent": lambda z: z**3, "mixed": lambda z: z.cumsum(axis=-1), "nothing": lambda z: 0.0 * z}
    with pm.Model() as model:
        spread = pm.HalfNormal("spread")
        offset = pm.Normal("offset", shape=(3, 2))
        pm.Deterministic("effect", 1.0 + spread * offset)
        pm.Deterministic("total", offset.sum())
        for name, function in others.items():
            pm.Deterministic(name, function(offset))
        pm.Normal("y", offset.sum(), 1.0, observed=1.0)
    draws = {"spread": rng.gamma(2.0, size=(2, 50)), "offset": rng.normal(size=(2, 50, 3, 2))}
    kept = {"effect": 1.0 + draws["spread"][..., None, None] * draws["offset"], "total": draws["offset"].sum((2, 3))}
    kept |= {name: function(draws["offset"]) for name, function in others.items()}
    run = az.from_dict({"posterior": draws | kept})
    whole = run["posterior"].to_dataset()
    less = whole.drop_vars("offset")
    exact = pk.unconstrained_draws(whole, model)
    for same in (run, run["posterior"]):
        np.testing.assert_array_equal(pk.unconstrained_draws(same, model), exact)
    np.testing.assert_allclose(pk.unconstrained_draws(less, model), exact, atol=1e-10)
    for told_by_nothing in (less.drop_vars("effect"), less.drop_vars("spread")):
        with pytest.raises(ValueError, match="the draws have no"):
            pk.unconstrained_draws(told_by_nothing, model)
