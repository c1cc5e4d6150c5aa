import signal

import pytest

from trainrig.launch.supervise.attempt_ends import (
    CAUSES,
    RunEnd,
    build_signature,
    find_end,
    read_outcome,
)
from trainrig.processes.stop_file import StopRequests


def write_outcome(kind, message="what it was"):
    return {"kind": kind, "message": message, "exit_code": 1}


@pytest.mark.parametrize(
    ("code", "written", "asked", "cause", "state"),
    [
        (0, None, None, "done", "done"),
        (0, None, "stopped", "done", "done"),
        (2, write_outcome("ConfigError"), None, "input", "refused"),
        (2, write_outcome("OutputTaken"), None, "input", "refused"),
        (2, None, None, "input", "refused"),
        (2, write_outcome("DataError"), None, "data", "failed"),
        (2, write_outcome("Diverged"), None, "data", "failed"),
        (1, write_outcome("ClusterError"), None, "cluster", "failed"),
        (1, write_outcome("ClusterLost"), None, "cluster", "failed"),
        (75, write_outcome("ClusterReplaced"), None, "lost cluster", "preempted"),
        (1, write_outcome("ZeroDivisionError"), None, "unknown", "failed"),
        (1, None, None, "unknown", "failed"),
        (-signal.SIGSEGV, None, None, "unknown", "failed"),
        (-signal.SIGKILL, None, None, "lost node", "failed"),
        (-signal.SIGTERM, None, None, "lost node", "failed"),
        (137, None, None, "lost node", "failed"),
        (75, write_outcome("Unfinished"), None, "preempted", "preempted"),
        (75, None, None, "preempted", "preempted"),
        (75, write_outcome("Unfinished"), "stopped", "stopped", "stopped"),
        (75, write_outcome("Unfinished"), "out of budget", "out of budget", "out of budget"),
        (75, write_outcome("Unfinished"), "deadline", "deadline", "failed"),
        (-signal.SIGKILL, None, "stopped", "stopped", "stopped"),
        (1, write_outcome("ClusterError"), "stopped", "stopped", "stopped"),
        (
            130,
            write_outcome("KeyboardInterrupt", "interrupted; the same"),
            None,
            "stopped",
            "stopped",
        ),
    ],
)
def test_each_end_has_its_cause(code, written, asked, cause, state):
    end = find_end(code, written, asked, "its last words")
    assert (end.cause, end.state, end.exit_code) == (cause, state, code)
    assert end.cause in CAUSES


def test_a_file_stop_in_the_output_is_a_request_of_the_user(tmp_path):
    (tmp_path / "stop").touch()
    how = StopRequests(str(tmp_path)).read_request()
    written = write_outcome("Unfinished", f"{tmp_path}: stopped by {how}; step 3 of 9 is saved")
    assert find_end(75, written, None, "").cause == "stopped"


def test_an_end_without_a_record_is_explained_by_the_last_output():
    assert find_end(1, None, None, "KeyError: 'x'").message == "KeyError: 'x'"
    assert find_end(-9, None, None, "step 7").message.endswith("its last line: step 7")
    assert find_end(3, None, None, "").message == "exit code 3"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"kind": "X"}', b"\xff"])
def test_a_torn_outcome_is_ignored(tmp_path, data):
    (tmp_path / "outcome.json").write_bytes(data)
    assert read_outcome(str(tmp_path / "outcome.json")) is None
    assert read_outcome(str(tmp_path / "none.json")) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 7 of 100: loss is nan", "step 9 of 100: loss is nan"),
        ("/tmp/a1/x.parquet: torn", "/tmp/b2/y.parquet: torn"),
        ("s3://b/k-7: S3 answers 503", "s3://b/k-8: S3 answers 503"),
        ("node 3f2a9c0d11 is gone", "node 99ab17c0de is gone"),
        ("at 0x7f3a: 1.5e-3 s", "at 0x7f3b: 2 s"),
    ],
)
def test_the_same_failure_has_the_same_signature(one, other):
    assert build_signature(RunEnd(1, "unknown", one)) == build_signature(
        RunEnd(1, "unknown", other)
    )


def test_other_failures_have_others():
    texts = ["KeyError: 'a'", "KeyError: 'b'", "ValueError: 'a'", "decade", "facade"]
    assert len({build_signature(RunEnd(1, "unknown", text)) for text in texts}) == len(texts)
    assert build_signature(RunEnd(1, "data", "x")) != build_signature(RunEnd(1, "cluster", "x"))
