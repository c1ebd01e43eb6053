import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from pymc_kernel.likelihood_free import Workers, WorkersLost


def run_batches(task, indices, arguments, executor, **settings):
    with Workers(executor) as workers:
        yield from workers.run(task, indices, arguments, **settings)


def square(index):
    return index**2


def odd_ones_fail(index):
    if index % 2:
        raise ValueError(f"no {index}")
    return index


def dies_at(index, deadly, flag):
    """Kill this process at ``deadly``: always, or only while the file ``flag`` is not there."""
    if index == deadly and not (flag and os.path.exists(flag)):
        if flag:
            with open(flag, "w"):
                pass
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def one(index):
    return (index,)


@pytest.mark.parametrize("executor", [None, 2])
def test_errors_are_handed_over_not_raised(executor):
    found = {b.index: b for b in run_batches(odd_ones_fail, range(6), one, executor, retries=1)}
    assert [i for i, b in sorted(found.items()) if b.error is not None] == [1, 3, 5]
    assert str(found[3].error) == "no 3"


def test_failing_batches_are_tried_again():
    tried = []

    def second_time(index):
        tried.append(index)
        if tried.count(index) == 1:
            raise OSError("the network is down")
        return index

    found = list(run_batches(second_time, range(5), one, ThreadPoolExecutor(2), retries=1))
    assert all(b.error is None for b in found)
    assert sorted(tried) == sorted([*range(5)] * 2)


def test_a_worker_that_dies_is_replaced_and_its_batch_done(tmp_path):
    flag = str(tmp_path / "flag")
    found = list(run_batches(dies_at, range(12), lambda i: (i, 5, flag), 2, retries=1))
    assert sorted(b.index for b in found) == list(range(12))
    assert all(b.error is None for b in found)


def test_a_batch_that_always_kills_is_found_and_the_others_are_done():
    found = {b.index: b for b in run_batches(dies_at, range(12), lambda i: (i, 5, None), 2, retries=1)}
    assert [i for i, b in found.items() if b.error is not None] == [5]
    assert sorted(found) == list(range(12))


def test_a_broken_executor_of_the_user_is_said():
    with ProcessPoolExecutor(2) as executor, pytest.raises(WorkersLost, match="executor=2"):
        list(run_batches(dies_at, range(12), lambda i: (i, 5, None), executor))
    with pytest.raises(WorkersLost):
        list(run_batches(square, range(3), one, executor))  # shut down by now


@pytest.mark.parametrize("window", [1, 3])
def test_no_more_is_in_flight_than_was_said(window):
    asked = []
    batches = run_batches(
        square, range(20), lambda i: asked.append(i) or (i,), ThreadPoolExecutor(4), max_in_flight=window
    )
    for count, _ in enumerate(batches, start=1):
        assert len(asked) <= count - 1 + 2 * window  # some that have finished are still to be yielded
    assert len(asked) == 20


def test_closing_ends_workers_of_its_own():
    before = set(multiprocessing.active_children())
    batches = run_batches(time.sleep, range(2), lambda i: (0.0 if i == 0 else 60.0,), 2)
    next(batches)
    start = time.perf_counter()
    assert set(multiprocessing.active_children()) > before
    batches.close()
    while set(multiprocessing.active_children()) > before:
        assert time.perf_counter() - start < 10.0
        time.sleep(0.01)


def test_closing_ends_no_process_of_others():
    batches = run_batches(square, range(3), one, 2)
    next(batches)
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60.0,))
    other.start()
    try:
        batches.close()
        time.sleep(0.3)
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_workers_serve_many_runs_and_are_replaced_between_them():
    with Workers(2) as workers:
        first = {b.result for b in workers.run(process_number, range(8), one)}
        assert {b.result for b in workers.run(process_number, range(8), one)} <= first
        assert workers.deaths == 0
        os.kill(min(first), signal.SIGKILL)
        time.sleep(0.3)
        assert sorted(b.result for b in workers.run(square, range(8), one)) == [i**2 for i in range(8)]
        assert workers.deaths == 1
        assert os.getpid() not in first


def process_number(index):
    time.sleep(0.02)
    return os.getpid()
