import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from pymc_kernel.likelihood_free import ArraySpec, TimedOut, Workers, WorkersLost, open_store, time_limit
from pymc_kernel.likelihood_free.interrupts import interrupts_wait


def run_batches(task, indices, arguments, executor, **settings):
    with Workers(executor) as workers:
        yield from workers.run(task, indices, arguments, **settings)


def odd_ones_fail(index):
    if index % 2:
        raise ValueError(f"no {index}")
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


def the_first_ends_its_process(index):
    time.sleep(0.2 if index else 0.1)
    if index == 0:
        os._exit(1)


def test_of_batches_that_are_lost_together_the_one_that_kills_alone_is_to_blame():
    """Lost once with others, which is no attempt of its own, then twice alone."""
    with Workers(2) as workers:
        found = list(workers.run(the_first_ends_its_process, range(6), one, retries=1))
    assert sorted(batch.index for batch in found) == list(range(6))
    assert [batch.index for batch in found if batch.error is not None] == [0]
    assert workers.deaths == 3


def test_a_broken_executor_of_the_user_is_said():
    with ProcessPoolExecutor(2) as executor, pytest.raises(WorkersLost, match="executor=2"):
        list(run_batches(os._exit, range(12), one, executor))
    with pytest.raises(WorkersLost):
        list(run_batches(abs, range(3), one, executor))  # shut down by now


@pytest.mark.parametrize("window", [1, 3])
def test_no_more_is_in_flight_than_was_said(window):
    asked = []
    given = range(20), lambda i: asked.append(i) or (i,), ThreadPoolExecutor(4)
    batches = run_batches(abs, *given, max_in_flight=window)
    for count, _ in enumerate(batches, start=1):
        assert len(asked) <= count - 1 + 2 * window  # some that have finished are still to be yielded
    assert len(asked) == 20


def test_closing_ends_workers_of_its_own_and_no_process_of_others():
    before = set(multiprocessing.active_children())
    batches = run_batches(time.sleep, range(2), lambda i: (0.0 if i == 0 else 60.0,), 2)
    next(batches)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60.0,))
    other.start()
    start = time.perf_counter()
    try:
        batches.close()
        while workers & set(multiprocessing.active_children()):
            assert time.perf_counter() - start < 10.0
            time.sleep(0.01)
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
        assert sorted(b.result for b in workers.run(abs, range(8), one)) == list(range(8))
        assert workers.deaths == 1
        assert os.getpid() not in first


def process_number(index):
    time.sleep(0.02)
    return os.getpid()


def in_a_thread(function):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def interrupt(index=None):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        pass
    return index


def test_an_interrupt_waits_for_the_users_code():
    steps = []

    @interrupts_wait
    def work(is_interrupted):
        if is_interrupted:
            interrupt()
        steps.append("kept")
        with interrupts_wait.not_here():
            steps.append("called")

    with pytest.raises(KeyboardInterrupt):
        work(True)
    assert steps == ["kept"]
    work(False)  # nothing is left of it
    assert steps == ["kept", "kept", "called"]


def test_it_strikes_at_once_in_the_users_code_and_a_second_one_anywhere():
    with interrupts_wait, interrupts_wait:
        with pytest.raises(KeyboardInterrupt), interrupts_wait.not_here():
            interrupt()
        with interrupts_wait.not_here():
            pass  # what was raised is not raised again
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_what_the_caller_does_with_interrupts_comes_back():
    rung = []
    before = signal.signal(signal.SIGINT, lambda number, frame: rung.append(number))
    try:
        with interrupts_wait:
            interrupt()
            assert rung == []
            with interrupts_wait.not_here():
                assert rung == [signal.SIGINT]
        interrupt()
        assert rung == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing():
    def run():
        with interrupts_wait, interrupts_wait.not_here():
            return signal.getsignal(signal.SIGINT)

    assert in_a_thread(run) == signal.getsignal(signal.SIGINT)


@pytest.mark.parametrize("executor", [None, 2])
def test_batches_that_are_done_are_kept_while_an_interrupt_waits(executor):
    kept = []

    @interrupts_wait
    def collect():
        with Workers(executor) as workers:
            for batch in workers.run(abs, range(20), one):
                if len(kept) == 3:
                    interrupt()
                kept.append(batch.result)

    with pytest.raises(KeyboardInterrupt):
        collect()
    assert len(kept) >= 4


def work_for(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def stopped_after(work, limit=0.05):
    """Return how many seconds work went on until the limit stopped it, or None where it did not."""
    start = time.perf_counter()
    try:
        with time_limit(limit):
            work()
    except TimedOut:
        return time.perf_counter() - start
    return None


in_both_threads = pytest.mark.parametrize("place", [lambda f: f(), in_a_thread], ids=["main thread", "another thread"])


@in_both_threads
def test_long_work_is_stopped_and_short_work_is_not(place):
    assert place(lambda: stopped_after(lambda: work_for(5.0))) < 2.0
    for limit in (5.0, None):
        assert place(lambda limit=limit: stopped_after(lambda: work_for(0.01), limit)) is None


def careful_work():
    try:
        work_for(5.0)
    except Exception:
        pytest.fail("caught by a handler that is not ours")


def work_within_a_limit():
    with time_limit(5.0):
        work_for(3.0)


@pytest.mark.parametrize("work", [lambda: time.sleep(5.0), careful_work, work_within_a_limit])
def test_a_sleep_handlers_of_the_simulator_and_limits_within_let_it_pass(work):
    assert stopped_after(work) < 2.0
    with time_limit(5.0):
        assert stopped_after(lambda: work_for(3.0)) < 2.0


class SlowToDelete:
    def __del__(self):
        work_for(0.5)  # Python drops what is raised here


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@in_both_threads
def test_a_strike_that_is_dropped_is_followed_by_another(place):
    def work():
        SlowToDelete()
        work_for(5.0)

    assert 0.5 < place(lambda: stopped_after(work)) < 3.0


@in_both_threads
def test_nothing_strikes_after_the_block(place):
    def many():
        for _ in range(100):
            stopped_after(lambda: work_for(0.001), 0.001)
        work_for(0.05)
        return "calm"

    assert place(many) == "calm"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
@pytest.mark.parametrize("seconds", [0.05, 0.3], ids=["after the block", "within the block"])
def test_an_alarm_of_the_caller_rings_in_time(seconds):
    """Every 0.12 seconds, whether the limit strikes before or not."""
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(time.perf_counter() - start))
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 0.12, 0.12)
    try:
        for _ in range(2):
            with pytest.raises(TimedOut), time_limit(seconds):
                work_for(5.0)
        work_for(0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) >= 3
    assert min(rung) >= 0.12


def opened(path, draws=10, batch_size=4, seed="1"):
    specs = {"prior/a": ArraySpec((), "float64", (), np.nan)}
    return open_store(path, specs, {}, draws, batch_size, {"seed": seed, "model": "m"}, {"seed": "7"})


def test_a_store_remembers_what_is_done_and_leaves_other_things_alone(tmp_path):
    store, _ = opened(tmp_path / "s")
    store.write(1, {"prior/a": np.arange(4.0)})
    store.write(2, {"prior/a": np.arange(2.0)}, is_complete=False)
    again, identity = opened(tmp_path / "s", batch_size=None, seed=None)
    assert again.left().tolist() == [0, 2]
    assert again.batch_size == 4
    assert identity["seed"] == "1"
    with pytest.raises(ValueError, match="holds 10 draws"):
        opened(tmp_path / "s", draws=9)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no finished store"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"must be a directory.*is a file"):
        opened(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("draws", "size"), [(1, 1), (150, 1), (1000, 10), (200_000, 1000)])
def test_default_batch_size(draws, size):
    assert opened(None, draws, None)[0].batch_size == size
