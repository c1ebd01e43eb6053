import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pymc_kernel.likelihood_free import TimedOut, Workers, time_limit
from pymc_kernel.likelihood_free.interrupts import interrupts_wait


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
            for batch in workers.run(abs, range(20), lambda i: (i,)):
                if len(kept) == 3:
                    interrupt()
                kept.append(batch.result)

    with pytest.raises(KeyboardInterrupt):
        collect()
    assert len(kept) >= 4


# -- time limits ---------------------------------------------------------------------------------------


def work_for(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def limited(seconds, limit):
    start = time.perf_counter()
    try:
        with time_limit(limit):
            work_for(seconds)
    except TimedOut:
        return "timed out", time.perf_counter() - start
    return "finished", time.perf_counter() - start


@pytest.mark.parametrize("place", [lambda f: f(), in_a_thread], ids=["main thread", "another thread"])
def test_long_work_is_stopped_and_short_work_is_not(place):
    status, seconds = place(lambda: limited(5.0, 0.05))
    assert status == "timed out"
    assert seconds < 2.0
    assert place(lambda: limited(0.01, 5.0))[0] == "finished"
    assert place(lambda: limited(0.01, None))[0] == "finished"


def test_a_sleep_is_stopped_in_the_main_thread():
    start = time.perf_counter()
    with pytest.raises(TimedOut), time_limit(0.05):
        time.sleep(5.0)
    assert time.perf_counter() - start < 2.0


def test_an_exception_handler_of_the_simulator_lets_it_pass():
    def careful_work():
        try:
            work_for(5.0)
        except Exception:
            pytest.fail("caught by a handler that is not ours")

    with pytest.raises(TimedOut), time_limit(0.05):
        careful_work()


def test_nothing_strikes_after_the_block():
    def many():
        for _ in range(100):
            try:
                with time_limit(0.001):
                    work_for(0.001)
            except TimedOut:
                pass
        work_for(0.05)
        return "calm"

    assert many() == "calm"
    assert in_a_thread(many) == "calm"


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


def test_a_limit_within_a_limit():
    start = time.perf_counter()
    with pytest.raises(TimedOut), time_limit(0.1), time_limit(5.0):
        work_for(3.0)
    assert time.perf_counter() - start < 2.0
    with time_limit(5.0):
        assert limited(3.0, 0.05)[0] == "timed out"
