import os
import signal
import threading
import time

import pytest

from trainrig.processes.interruptible import InterruptibleCall


class Stop(Exception):
    pass


def test_results_and_errors_come_back():
    assert InterruptibleCall().run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        InterruptibleCall().run(lambda: 1 // 0)


def test_a_signal_ends_the_wait_and_the_feed():
    def stop(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    call = InterruptibleCall()
    fed = threading.Event()
    ended = threading.Event()

    def read_forever() -> None:
        try:
            for _ in call.feed(iter(int, 1)):
                if not fed.is_set():
                    fed.set()
                    os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0)
        finally:
            ended.set()

    try:
        with pytest.raises(Stop):
            call.run(read_forever)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.wait(60)
