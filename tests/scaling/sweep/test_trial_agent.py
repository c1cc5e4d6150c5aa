"""Consequences of the failures of a trial."""

import pytest

from trainrig.processes.retry_policy import GiveUp
from trainrig.scaling.sweep.trial_agent import FailureRecord, TrialFailure

KILLED = TrialFailure("its process died: killed by SIGKILL")


def make_exception_failure(
    step: int, run: str = "d1500", line: str = "ValueError: 7 of 8"
) -> TrialFailure:
    return TrialFailure(line, run, step, exception=line)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "trial.json")


def decide_after_failures(
    path: str, *failures: TrialFailure, retries: int = 3
) -> list[float | GiveUp]:
    """Return the decision after each failure.

    Each decision is made from disk, as by another process on another node.
    """
    return [FailureRecord(path, retries).decide_retry(failure) for failure in failures]


def test_the_same_exception_at_the_same_step_ends_a_trial(path):
    first, second = decide_after_failures(
        path, make_exception_failure(5), make_exception_failure(5, line="ValueError: 9 of 8")
    )
    assert first == 0.0 and isinstance(second, GiveUp)
    assert "the same failure at step 5 twice in a row" in second.reason
    assert "ValueError: 9 of 8" in second.reason


@pytest.mark.parametrize(
    "other",
    [
        make_exception_failure(6),
        make_exception_failure(5, run="d3000"),
        make_exception_failure(5, line="KeyError: 'x'"),
        KILLED,
    ],
)
def test_another_failure_is_tried_again(path, other):
    assert not any(
        isinstance(decision, GiveUp)
        for decision in decide_after_failures(path, make_exception_failure(5), other)
    )


def test_a_process_that_is_killed_is_started_again_with_back_off_as_often_as_it_may(path):
    *waited, last = decide_after_failures(path, *[KILLED] * 5, retries=4)
    assert waited == [0.0, 1.0, 2.0, 4.0]
    assert isinstance(last, GiveUp) and "killed by SIGKILL" in last.reason
