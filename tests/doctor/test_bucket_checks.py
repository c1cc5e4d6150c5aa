"""`trainrig doctor --bucket` tries each right, and leaves nothing behind."""

from pathlib import Path

import pytest

from trainrig import storage
from trainrig.doctor.diagnosis import run_check
from trainrig.doctor.machine_checks import check_bucket
from trainrig.errors import ClusterError


def test_a_bucket_that_allows_all_is_fine_and_stays_empty(s3: str, tmp_path: Path) -> None:
    for place in (f"{s3}/runs", str(tmp_path)):
        found = check_bucket(place)
        assert (found.severity, found.advice) == ("ok", "")
        assert storage.list_files(place) == []


def test_a_bucket_that_does_not_exist_is_a_problem(s3: str) -> None:
    found = check_bucket(f"{s3}-of-nobody/runs")
    assert found.severity == "problem"
    assert f"{s3}-of-nobody/runs: cannot create objects" in found.found


def test_the_missing_right_is_named_and_the_object_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> bytes:
        raise ClusterError(f"{path}: access denied")

    monkeypatch.setattr(storage, "read", refuse)
    found = check_bucket(str(tmp_path))
    assert f"{tmp_path}: cannot read objects (create succeeded): " in found.found
    assert list(tmp_path.iterdir()) == []


def test_a_location_without_a_bucket_is_a_problem_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for location in ("s3://", "gs:///"):
        found = check_bucket(location)
        assert (found.severity, found.found) == ("problem", f"{location}: names no bucket")
    assert not list(tmp_path.iterdir())


def test_an_unknown_scheme_names_those_that_there_are() -> None:
    found = run_check("bucket", lambda: check_bucket("ftp://host/runs"))
    assert found.severity == "problem"
    assert "begins with one of file://, s3://" in found.found
