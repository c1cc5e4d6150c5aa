"""Library versions on the cluster and here: differences are reported, and the run continues."""

import logging
from pathlib import Path

import pytest

from trainrig import manifest
from trainrig.launch.supervise.attempt_start import compare_versions
from trainrig.launch.supervise.run_record import Home, RunRecord


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    record = Home(str(tmp_path)).create("curate", "/out")
    record.take_attempt("job", "http://127.0.0.1:8265", "", {})
    return record


def test_equal_versions_are_no_news(run: RunRecord) -> None:
    run.record("submitted", 1, versions=manifest.collect_environment())
    assert compare_versions(run, 1) == ""
    assert len(list(run.read_events())) == 1


def test_a_difference_is_warned_of_and_on_record(
    run: RunRecord, caplog: pytest.LogCaptureFixture
) -> None:
    there = manifest.collect_environment() | {"numpy": "1.0", "lost": "2"}
    run.record("submitted", 1, versions=there)
    numpy = manifest.collect_environment()["numpy"]
    with caplog.at_level(logging.WARNING):
        text = compare_versions(run, 1)
    assert text == f"lost 2 there, none here, numpy 1.0 there, {numpy} here"
    assert text in caplog.text
    assert list(run.read_events())[-1]["differences"] == text


def test_a_submission_without_versions_is_not_compared(run: RunRecord) -> None:
    run.record("submitted", 1)
    assert compare_versions(run, 1) == ""
