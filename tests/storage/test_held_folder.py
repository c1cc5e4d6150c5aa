"""A folder that a run holds and that is deleted: nothing is written there afterwards."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig import storage
from trainrig.errors import FolderGone
from trainrig.processes import append_log


def copy_in(path: str) -> None:
    with storage.atomic_file(path) as temporary:
        Path(temporary).write_bytes(b"x")


def move_in(path: str) -> None:
    source = Path(path).parents[2] / "source"
    source.write_bytes(b"x")
    storage.move(str(source), path)


WRITERS: dict[str, Callable[[str], object]] = {
    "write": lambda path: storage.write(path, b"x"),
    "create": lambda path: storage.create(path, b"x"),
    "atomic_file": copy_in,
    "move": move_in,
    "append_line": lambda path: append_log.append_line(path, b"x\n"),
    "open_appender": lambda path: append_log.open_appender(path, "me").write(b"x\n"),
}


@pytest.mark.parametrize("how", ["removed", "replaced by another"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_brings_back_a_folder_that_was_removed(
    tmp_path: Path, writer: str, how: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with (
        pytest.raises(FolderGone, match=f"^{folder}: {how} during the run"),
        storage.hold_folder(str(folder), lambda: False),
    ):
        WRITERS[writer](f"{folder}/deep/before.jsonl")
        folder.rename(tmp_path / "away")
        if how != "removed":
            folder.mkdir()
        WRITERS[writer](f"{folder}/deep/after.jsonl")
    assert not folder.exists() or list(folder.iterdir()) == []


def test_an_append_to_an_open_file_of_a_deleted_folder_is_rejected(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(FolderGone), storage.hold_folder(str(folder), lambda: False):
        appender = append_log.open_appender(f"{folder}/metrics.jsonl", "me")
        appender.write(b"one\n")
        shutil.rmtree(folder)
        appender.write(b"two\n")


def test_every_failure_from_a_missing_folder_names_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(FolderGone), storage.hold_folder(str(folder), lambda: False):
        shutil.rmtree(folder)
        storage.read(f"{folder}/run.toml")


def test_a_folder_of_the_same_run_may_have_another_inode(tmp_path: Path) -> None:
    """Network file systems may change inode numbers."""
    folder = tmp_path / "run"
    folder.mkdir()
    with storage.hold_folder(str(folder), lambda: True):
        folder.rename(tmp_path / "away")
        folder.mkdir()
        storage.write(f"{folder}/file", b"x")
    shutil.rmtree(folder)
    storage.write(f"{folder}/file", b"x")  # no longer held


def test_an_error_of_a_run_that_deletes_its_own_folder_is_raised_as_it_is(tmp_path: Path) -> None:
    """A run that is rejected before it starts deletes its folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    with (
        pytest.raises(ValueError, match="refused"),
        storage.hold_folder(str(folder), lambda: False),
    ):
        storage.delete_folder(str(folder))
        raise ValueError("refused")
