import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.emulated_model import limits_of, no_limits
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.model.priors import ModelPrior
from tests.plugin.models import add_places, learned_at
from tests.plugin.parts import QUIET, black_box

KNOWN = np.array([[[0.2, 3.0]], [[0.9, 7.0]], [[0.3, 4.0]]])


pytestmark = pytest.mark.usefixtures("no_gradients")


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
