"""Estimates of likelihoods, summaries and bandwidths on every kind of array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import likelihood_free as lf
from tests.fuzz.strategies import arrays, dimensions, kept, powers, seeds, sizes

NAMES = (
    "simulated", "observed", "factor", "epsilon", "num_simulations", "shrinkage", "summaries", "quantile", "latent",
    "weights", "points", "values", "prior", "log_variance", "retries", "parameters",
)  # fmt: skip


@st.composite
def simulations(draw, most=7):
    """Simulated summaries and observed ones."""
    q = draw(dimensions())
    return draw(arrays((draw(sizes(0, most)), q))), draw(arrays((draw(st.sampled_from([q, q, q, 2])),)))


@given(
    case=simulations(), width=powers(), is_matrix=st.booleans(), number=st.integers(-1, 9),
    shrinkage=st.sampled_from([0.0, 0.0, 0.5, 1.0, -0.5, 2.0, np.nan]),
)  # fmt: skip
def test_estimates(case, width, is_matrix, number, shrinkage):
    simulated, observed = case
    q = len(observed)
    factor = width * np.eye(q) if is_matrix else np.full(q, width)
    kept(lambda: lf.log_kernel_abc(simulated, observed, factor, number), NAMES)
    kept(lambda: lf.log_normal_unbiased(simulated, observed), NAMES)
    kept(lambda: lf.log_synthetic(simulated, observed, shrinkage), NAMES)


@given(data=st.data(), case=simulations(), quantile=st.sampled_from([0.5, 1.0, 0.1, 0.0, -1.0, 2.0, np.nan]))
def test_rejection(data, case, quantile):
    summaries, observed = case
    found = kept(lambda: lf.rejection(summaries, observed, quantile), NAMES)
    if found is None:
        return
    assert abs(found.weights.sum() - 1.0) < 1e-9
    assert (found.weights >= 0.0).all()
    near = np.asarray(summaries, dtype=float)[found.index]
    latent = data.draw(arrays((len(near), 2)))
    kept(lambda: lf.regression_adjusted(latent, near, observed, found.weights), NAMES)


@given(data=st.data(), d=st.integers(1, 2), rng=seeds(), scale=powers(), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_bandwidths(data, d, rng, scale, share):
    observed = data.draw(arrays((2,)))
    prior = data.draw(arrays((60, d)))

    def simulate(positions):
        out = scale * rng.standard_normal((len(positions), 2)) + positions[:, :1]
        out[rng.random(len(out)) < share] = np.nan
        return out

    # TooManyFailures is about the pilot simulations.
    pilot = kept(lambda: lf.explore(prior, simulate, observed, 100, 5, rng), (*NAMES, "pilot"))
    if pilot is not None:
        number = data.draw(st.sampled_from([1, 10]))
        found = kept(lambda: lf.choose_bandwidth(pilot, np.asarray(observed, dtype=float), number, 1.0), NAMES)
        assert found is None or np.isfinite(found.factor).all()


@given(data=st.data(), d=st.integers(1, 3), q=st.integers(1, 3), n=st.sampled_from([5, 30, 60]), rng=seeds())
def test_learned_likelihoods(data, d, q, n, rng):
    parameters, summaries = data.draw(arrays((n, d))), data.draw(arrays((n, q)))
    weights = data.draw(st.sampled_from([None, np.ones(n), rng.random(n), np.zeros(n), np.full(n, -1.0)]))
    found = kept(lambda: lf.LearnedLikelihood().fit(parameters, summaries, rng, weights=weights), NAMES)
    if found is None:
        return
    some, observed = np.asarray(parameters, dtype=float)[:4], np.asarray(summaries, dtype=float)[-1]
    kept(lambda: found.log_density_and_gradient(some, observed), NAMES)
    draws = kept(lambda: found.sample(some, rng), NAMES)
    kept(lambda: found.log_density(some, draws), NAMES)
    kept(lambda: found.place_of(observed, some, rng), NAMES)


@given(data=st.data(), times=st.integers(0, 4))
def test_simulators(data, times):
    whole = np.reshape(data.draw(arrays((times, 2))), (times, 2))
    rows = iter(whole)
    one_by_one = kept(lambda: lf.simulate_repeatedly(lambda: next(rows), None, times), NAMES)
    together = kept(lambda: lf.simulate_repeatedly(lambda: whole, None, times, together=True), NAMES)
    is_whole = np.isfinite(whole).all(axis=1)
    assert len(one_by_one.summaries) == len(together.summaries) == is_whole.sum()
    assert one_by_one.failed == together.failed == (~is_whole).sum()
