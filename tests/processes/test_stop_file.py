import os
import signal
import threading

import pytest

from trainrig import storage
from trainrig.processes import stop_file
from trainrig.processes.stop_file import StopRequests
from trainrig.processes.stop_signals import StopRequest
from trainrig.storage import retries


@pytest.fixture
def marks():
    """Install signal handlers, and return the list of their calls."""
    seen = []
    before = {
        n: signal.signal(n, lambda number, frame: seen.append(number)) for n in stop_file.SIGNALS
    }
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "how"), list(stop_file.SIGNALS.items()))
def test_a_first_signal_asks_and_a_second_does_what_it_always_did(
    tmp_path, marks, number, how, monkeypatch
):
    monkeypatch.setattr(StopRequest, "is_repeat", lambda request, number: False)
    with StopRequests(str(tmp_path)) as requests:
        assert requests.read_request() is None
        signal.raise_signal(number)
        assert (requests.read_request(), marks) == (how, [])
        signal.raise_signal(number)
        assert (requests.read_request(), marks) == (how, [number])
    os.kill(os.getpid(), number)
    assert marks == [number, number]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_repeated_at_once_asks_once(tmp_path, marks, number):
    with StopRequests(str(tmp_path)) as requests:
        for _ in range(3):
            signal.raise_signal(number)
        assert (requests.read_request(), marks) == (stop_file.SIGNALS[number], [])


def test_a_sighup_that_is_ignored_stays_so(tmp_path, marks):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequests(str(tmp_path)) as requests:
        signal.raise_signal(signal.SIGHUP)
        assert requests.read_request() is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_handlers_are_put_back_when_nothing_came(tmp_path, marks):
    with StopRequests(str(tmp_path)):
        pass
    signal.raise_signal(signal.SIGTERM)
    assert marks == [signal.SIGTERM]


def test_a_second_signal_after_a_stop_file_has_its_usual_effect(tmp_path, marks):
    (tmp_path / "stop").touch()
    with StopRequests(str(tmp_path)) as requests:
        assert requests.read_request() == f"the file {tmp_path}/stop"
        signal.raise_signal(signal.SIGINT)
        assert marks == []
        signal.raise_signal(signal.SIGINT)
        assert marks == [signal.SIGINT]


def test_a_file_in_the_run_folder_asks_and_goes_when_honoured(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_file, "LOOK_EVERY", 0.0)
    with StopRequests(str(tmp_path)) as requests:
        assert requests.read_request() is None
        (tmp_path / "stop").touch()
        assert requests.read_request() == f"the file {tmp_path}/stop"
        requests.remove_request()
        assert not (tmp_path / "stop").exists()
        requests.remove_request()


def test_in_a_bucket_too(s3, monkeypatch):
    from trainrig import storage

    monkeypatch.setattr(stop_file, "LOOK_EVERY", 0.0)
    with StopRequests(f"{s3}/run") as requests:
        storage.write(f"{s3}/run/stop", b"")
        assert requests.read_request() == f"the file {s3}/run/stop"
        requests.remove_request()
        assert not storage.exists(f"{s3}/run/stop")


def test_the_file_is_not_asked_for_at_every_turn(tmp_path, monkeypatch):
    with StopRequests(str(tmp_path)) as requests:
        assert requests.read_request() is None
        (tmp_path / "stop").touch()
        assert requests.read_request() is None  # the file was read a moment ago
        requests._looked -= stop_file.LOOK_EVERY
        assert requests.read_request() is not None


def test_outside_the_main_thread_only_the_file_counts(tmp_path):
    def elsewhere():
        with StopRequests(str(tmp_path)) as requests:
            outcome.append(requests.read_request())

    outcome = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert outcome == [None]


@pytest.mark.slow
def test_an_unreadable_stop_file_ends_no_run(proxy, s3, monkeypatch, caplog):
    monkeypatch.setattr(retries, "BRIEF_SECONDS", 0.05)
    monkeypatch.setattr(stop_file, "LOOK_EVERY", 0.0)
    requests = StopRequests(f"{s3}/run")
    proxy.times = 10**6
    assert [requests.read_request(), requests.read_request()] == [None, None]
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        f"{s3}/run/stop: the stop file could not be looked for"
    ]
    proxy.times = 0
    storage.write(f"{s3}/run/stop", b"")
    assert requests.read_request() == f"the file {s3}/run/stop"
    proxy.times = 10**6
    requests.remove_request()
    assert "run/stop: remove this file before you run" in caplog.messages[-1]
