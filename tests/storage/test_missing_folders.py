"""Messages about missing folders: where trainrig looked, and names of the Hugging Face Hub."""

from pathlib import Path

import pytest

from trainrig.storage.missing_folders import describe_missing_model, describe_origin, is_missing


def test_a_relative_path_is_told_with_the_directory_it_was_looked_up_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe_origin("runs/base") == f" (looked in {tmp_path})"
    assert describe_origin("/runs/base") == describe_origin("s3://bucket/runs/base") == ""
    (tmp_path / "runs").mkdir()
    assert is_missing("runs/base") and not is_missing("runs")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "Qwen/Qwen2-0.5B",
            "for a model of the Hugging Face Hub, run `hf download Qwen/Qwen2-0.5B --local-dir "
            "Qwen2-0.5B` and `trainrig import Qwen2-0.5B runs/Qwen2-0.5B`, and name "
            "runs/Qwen2-0.5B",
        ),
        ("runs/tuned", "name the folder of a training run"),  # its first part is a folder
        ("model", "name the folder of a training run"),
        ("a/b/c", "name the folder of a training run"),
    ],
)
def test_a_name_of_the_hub_is_answered_with_its_download(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    message = describe_missing_model(path)
    assert message == f"{path}: no such folder (looked in {tmp_path}); {says}"
