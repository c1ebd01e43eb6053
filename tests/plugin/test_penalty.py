"""What is not known of a black box costs log density."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.emulation import fit_outputs, noisy_variance, variance_bound
from pymc_kernel.plugin.emulation.emulate import part_of, search_of
from pymc_kernel.plugin.emulation.model_graph import with_silent_potential
from pymc_kernel.plugin.emulation.penalty import arrays_of_bound, filled_up, of_rows, relative_errors
from pymc_kernel.plugin.emulation.record import nearest_rows
from pymc_kernel.plugin.model.unconstrained import split_positions, value_shapes
from tests.emulation.test_estimates import value_at
from tests.plugin.models import add_places
from tests.plugin.parts import black_box, data_around

pytestmark = pytest.mark.usefixtures("no_gradients")

TIMES = np.arange(4.0)
NOISE = 0.1


def curve(rows):
    """Return exp(-rate t) of rates (b, 1), at four times each."""
    return np.exp(-rows * TIMES)


OBSERVED = curve(np.ones((1, 1)))


def searched(places=8, function=curve):
    """A search for the outputs of three groups that has learned from draws of the prior, and these."""
    outputs = lambda: black_box(function, "m", "m")(pm.LogNormal("rate", 0.0, 0.5, shape=3)[:, None])  # noqa: E731
    search = part_of(data_around(outputs, np.tile(OBSERVED, (3, 1)), NOISE), 0.05, np.random.default_rng(0))
    positions = np.log(np.random.default_rng(1).uniform(0.3, 3.0, (places, 3)))
    add_places(search, positions)
    return search, positions


def fits_of(seed, count=20):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(0.2, 3.0, (count, 2))
    fit = fit_outputs(inputs, np.column_stack([np.sin(inputs[:, 0]), inputs.prod(axis=1)]), rng)
    return fit, variance_bound(fit, inputs[:10])


@pytest.mark.parametrize("functions", [[0, 0, 0], [0, 1, 2], [1, 0, 1]])
def test_errors_are_standard_deviations_times_steps(functions):
    fits, bounds = zip(*(fits_of(f, 20 + f) for f in range(max(functions) + 1)), strict=True)
    inputs, steps = np.array([[0.5, 1.0], [2.9, 0.3], [5.0, 5.0]]), np.array([[1.0, 2.0], [-20.0, 3.0], [300.0, 0.0]])
    arrays = [arrays_of_bound(b, fit.inverse_length_scale) for b, fit in zip(bounds, fits, strict=True)]
    filled = {k: filled_up([a[k] for a in arrays]) for k in arrays[0]}
    of = of_rows({k: pytensor.shared(a, shape=a.shape) for k, a in filled.items()}, np.array(functions))
    z = np.concatenate([fits[f].scaled(inputs[[b]], inside=False) for b, f in enumerate(functions)])
    scales = np.array([fits[f].inverse_length_scale for f in functions])
    scaled = pt.specify_shape(pt.dmatrix(), (3, 2))
    graph = relative_errors(of, scaled, scaled * scales) * steps
    variances = np.array([value_at(bounds[f], fits[f], inputs[[b]]).item() for b, f in enumerate(functions)])
    given = {scaled.owner.inputs[0]: z}
    np.testing.assert_allclose(graph.eval(given), np.sqrt(variances)[:, None] * steps, rtol=1e-5, atol=1e-4)
    assert variances[2] > 1e-3


def test_curvatures_are_those_of_a_normal_likelihood():
    search, _ = searched()
    fits, positions = search.record.fits(search._margins(), search.rng), np.array([[0.0, 0.1, -0.1], [0.3, 0.6, 1.0]])
    inputs = [[np.exp(x)[:, None]] for x in positions]
    (curvatures,) = search.given.curvatures(positions, inputs, fits, search.rng)
    fit = fits[0][0][0]
    assert fit.log_outputs.all()
    slopes = [curve(rows) for [rows] in inputs]
    # On the scale of logarithms, the second derivative has a term of the residual besides.
    second = [(s**2 + s * (s - OBSERVED)) * fit.reach**2 / NOISE**2 for s in slopes]
    np.testing.assert_allclose(curvatures, np.mean(second, axis=0).sum(axis=1), rtol=2e-2)


LIKELIHOODS = {
    "normal": lambda y, mean, sd: pm.Normal("y", mean, sd, observed=y),
    "heavy tails": lambda y, mean, sd: pm.StudentT("y", 2.0, mu=mean, sigma=sd, observed=pm.Data("data", y)),
    "censored": lambda y, mean, sd: pm.Censored("y", pm.Normal.dist(mean, sd), None, 0.5, observed=np.minimum(y, 0.5)),
    "potential": lambda y, mean, sd: pm.Potential("y", pt.sum(-pt.abs(y - mean) / sd)),
    "latent": lambda y, mean, sd: pm.Normal("y", pm.Normal("latent", mean, sd, initval=y), 0.1, observed=y),
}
MARKS = {"heavy tails": pytest.mark.slow, "censored": pytest.mark.long, "latent": pytest.mark.long}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in LIKELIHOODS])
def test_on_average_so_much_is_lost_by_errors(name, monkeypatch):
    """By the true density with outputs that are off by errors of both signs."""

    def wave(rows):
        return np.exp(np.sin(2.0 * rows + TIMES))

    y, rng = wave(np.ones((1, 1))), np.random.default_rng(4)

    def model_of_outputs(outputs_of):
        with pm.Model() as model:
            rate = pm.LogNormal("rate", 0.0, 0.5, shape=1)
            LIKELIHOODS[name](y, outputs_of(rate[:, None]), pm.HalfNormal("spread", 0.3))
        return model

    search = search_of(model_of_outputs(black_box(wave, "m", "m")), 0.05, rng)[0]
    sizes = search.initial.size
    add_places(search, search.initial + 0.3 * rng.standard_normal((3 * sizes, sizes)))
    assert search.learn()
    assert (search.fits[0][4] == 0.0).all()  # a search that has no draw of the posterior yet has to go far
    monkeypatch.setattr(type(search), "_is_poor", False)
    assert search.learn()
    given = pt.dmatrix("outputs")
    known = model_of_outputs(lambda _: given)
    density = known.compile_fn(known.logp(), inputs=[*known.value_vars, given], point_fn=False)
    fit, bound, steps = search.fits[0][0][0], search.fits[0][3][0], search.fits[0][4]
    largest = 0.0
    for place in search.initial + 1.5 * rng.standard_normal((8, sizes)):
        rows = np.exp(place[:1])[:, None]
        errors = np.sqrt(np.maximum(value_at(bound, fit, rows), 1e-12))[:, None] * steps
        learned = np.log(fit(rows)) if fit.log_outputs.all() else fit(rows)
        shifted = [learned + sign * errors for sign in (0.0, -1.0, 1.0)]
        values = [v[0] for v in split_positions(place[None], value_shapes(known))]
        middle, below, above = (density(*values, np.exp(x) if fit.log_outputs.all() else x) for x in shifted)
        levels = []
        for share in (0.0, 1.0):
            search.penalty_share.set_value(share)
            levels.append(search.chains.log_density(place))
        assert levels[0] == pytest.approx(float(middle), rel=1e-6)
        expected = max(float(middle - 0.5 * (below + above)), 0.0)
        assert levels[0] - levels[1] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        largest = max(largest, expected)
    assert largest > 0.1
    search.particles = "some"  # they look for the modes that it lacks
    assert search.learn()
    assert (search.fits[0][4] == 0.0).all()


def test_no_draw_is_where_nothing_was_evaluated():
    """Outputs are flat, and far from the data, from rates of two on; a trend that goes on would meet the data again."""
    search, _ = searched(function=lambda rows: np.where(rows < 2.0, (rows - 1.0) * TIMES, 30.0))
    search.learn()
    places = np.array([search.record.best_places(1)[0], np.full(3, 2.5)])  # the best, and one that is far
    density = search.emulated.compile_logp()
    learned = np.array([density({"rate_log__": x}) for x in places])
    losses = search.challengers.losses(search.chains, places)
    search.penalty_share.set_value(0.0)
    np.testing.assert_allclose(losses, [density({"rate_log__": x}) for x in places] - learned, atol=1e-9)
    assert losses[1] > losses[0] + 10.0
    assert 0.0 <= losses[0] < 1.0
    assert [p.name for p in search.emulated.potentials] == ["emulation_penalty"]
    pm.sample_prior_predictive(5, model=search.emulated, random_seed=0)  # no warning of a potential


def test_forward_samplers_warn_of_potentials_of_the_user_beside_a_penalty():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("own", 2.0 * x)
        with_silent_potential(model, "penalty", 1.0 * x)
        with pytest.warns(UserWarning, match="Potentials"):
            pm.sample_prior_predictive(2, random_seed=0)
    assert float(model.compile_logp()({"x": np.array(3.0)})) == pytest.approx(stats.norm.logpdf(3.0) + 9.0)


def test_rows_are_near_one_by_one():
    """At the best place, with the outputs of one group from elsewhere, the likelihood is that of this group alone."""
    search, positions = searched(places=20)
    (margins,) = search._margins()
    outputs = curve(np.exp(positions).reshape(-1, 1)).reshape(20, 3, -1)
    own = -0.5 * ((outputs - OBSERVED) ** 2).sum(axis=2) / NOISE**2
    best = np.argmax(search.record.log_densities)
    # Half of the quantile of a chi-squared variable with three degrees of freedom that one of a thousand is beyond.
    np.testing.assert_allclose(margins, own - own[best] + 16.266 / 2.0, atol=1e-3)
    assert (margins < 0.0).any()
    assert (margins[best] > 0.0).all()


def test_far_rows_are_learned_where_near_ones_are_few():
    is_known = np.array([[True, True], [True, False], [True, True]])
    margin = np.array([[1.0, -1.0], [-3.0, 5.0], [-2.0, 2.0]])
    assert nearest_rows(is_known, margin, 1).tolist() == [[True, False], [False, False], [False, True]]
    assert nearest_rows(is_known, margin, 4).tolist() == [[True, True], [False, False], [True, True]]
    assert nearest_rows(is_known, margin, 9).tolist() == is_known.tolist()
    assert not nearest_rows(is_known & False, margin, 9).any()


def test_places_apart_count_where_draws_may_lie():
    search, _ = searched()
    search.learn()
    places, rng = np.zeros((4, 3)), np.random.default_rng(0)
    near = rng.standard_normal((5, 50, 3))
    best = search.record.best_places(1)[0]
    for level, counts in ((0.0, True), (-1e4, False)):
        search.challengers.apart, search.rhat = best[None], 1.0
        search.chains.go_to(places)
        search.challengers._compared = near, near[:1] + 100.0
        search.record.evaluated[-1] = search.record.evaluated[-1]._replace(log_density=search._least() + 1.0 + level)
        search.kinds = np.array(["apart"])
        search._take_in_modes()
        assert (search.rhat > 10.0) is counts
        assert bool((search.chains.places[0] == best).all()) is counts


def _a_log_likelihood(x):
    return np.asarray(np.cos(2.0 * x).sum() - 0.5 * ((x - 1.0) ** 2).sum())


def _estimated(x):
    noisy = lambda rng, x, _: _a_log_likelihood(x) + rng.standard_normal()  # noqa: E731
    pk.EstimatedLikelihood("y", noisy, x, observed=0.0)


of_all, of_one = (black_box(_a_log_likelihood, kind, "s") for kind in "vs")
TERMS = {
    "exact": lambda x: pm.Potential("y", of_all(x)),
    "of two subjects": lambda x: pm.Potential("y", of_one(x[0]) + of_one(x[1])),
    "estimated": _estimated,
}


def searched_for(name):
    """A search for a term of the log density."""
    with pm.Model() as model:
        TERMS[name](pm.Normal("x", 0.0, 2.0, shape=2))
    return search_of(model, 0.05, np.random.default_rng(5))


@pytest.mark.parametrize("name", TERMS)
def test_of_a_log_likelihood_half_the_variance_is_lost(name):
    """What is learned is a term of the log density, so that its own variance counts."""
    search, is_whole = searched_for(name)
    assert not is_whole
    rng = search.rng
    add_places(search, rng.normal(0.0, 2.0, (30, 2)))
    assert search.learn()
    fit, places = search.fits[0][0][0], rng.normal(0.0, 4.0, (5, 2))
    levels = {}
    for share in (0.0, 1.0):
        search.penalty_share.set_value(share)
        levels[share] = np.array([search.chains.log_density(x) for x in places])
    known = search.record.values(search.unknown.parts[0])[0]
    bound = noisy_variance(fit) if name == "estimated" else variance_bound(fit, known.reshape(-1, known.shape[2]))
    rows = places.reshape(-1, known.shape[2])
    variances = (fit.directions**2).sum() * value_at(bound, fit, rows).reshape(5, -1).sum(axis=1)
    np.testing.assert_allclose(levels[0.0] - levels[1.0], 0.5 * variances, rtol=1e-6, atol=1e-9)
    assert variances.max() > 2.0 * variances.min() > 0.0
    assert variances.max() > 1e-3
    for place in (places[0], places[0], places[1], places[0]):  # what is not learned is evaluated once at a place
        outputs = [rng.normal(0.0, 9.0, rows.type.shape) for rows in search.given._rows]
        levels = search.given.log_density(outputs, place), search.given._density_with(outputs, place)
        assert levels[0] == pytest.approx(levels[1])


def test_of_several_rows_or_estimates_it_is_not_asked_whether_it_goes_on():
    for search in (searched()[0], searched_for("estimated")[0]):
        assert not search.unknown.may_go_on
