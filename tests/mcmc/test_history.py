import numpy as np

from pymc_kernel.mcmc.metropolis import append, empty_history, recent


def test_history_is_bounded_and_evenly_spaced():
    history = empty_history(8, 1)
    for t in range(1, 1001):
        history = append(history, np.array([float(t)]))
        assert history.buffer.shape == (8, 1)
    kept = history.buffer[: history.count, 0]
    assert history.count > 3
    assert np.unique(np.diff(kept)).size == 1
    assert kept[-1] > 1000 - history.stride


def test_older_history_keeps_what_it_held():
    older = empty_history(16, 1)
    for t in range(5):
        older = append(older, np.array([float(t)]))
    newer = append(older, np.array([99.0]))
    np.testing.assert_array_equal(recent(older, 1.0)[:, 0], np.arange(5.0))
    assert recent(newer, 1.0)[-1, 0] == 99.0


def test_recent_part():
    history = empty_history(100, 1)
    for t in range(30):
        history = append(history, np.array([float(t)]))
    np.testing.assert_array_equal(recent(history)[:, 0], np.arange(10.0, 30.0))
