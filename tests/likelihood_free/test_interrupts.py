import os
import signal
import threading

import pytest

from pymc_kernel.likelihood_free import Workers
from pymc_kernel.likelihood_free.interrupts import interrupts_wait


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
    done = []

    def run():
        with interrupts_wait, interrupts_wait.not_here():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]


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
