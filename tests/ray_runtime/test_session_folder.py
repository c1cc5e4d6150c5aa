"""The private folder of a Ray session: its permissions, and which folders are cleaned up."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import session_folder

OTHER = 61234  # another user than this one
LONG = 30.0  # s: a bound for broken code
# Opens a file for writing, reports that, and stays.
WRITER = "import sys, time; f = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(600)"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the parent of private folders; its name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="trl-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setattr(session_folder, "FALLBACK", Path(folder))
        yield Path(folder)


@pytest.fixture
def start_writer() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Yield `start_writer(path, user)`: start a process that has the file open."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, user: int | None = None) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", WRITER, str(path)]
        before = None if user is None else (lambda: os.setuid(user))
        if user is not None:  # only root may be able to read the interpreter
            command = ["/bin/sh", "-c", 'exec 3>"$0"; echo open; exec sleep 600', str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before)
        started.append(process)
        assert process.stdout and process.stdout.readline() == "open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def write_dead_owner(folder: Path) -> Path:
    """Record a dead owner, as its own process would have."""
    gone = Process.here().model_copy(update={"process_began": "1"})
    (folder / session_folder.OWNER).write_text(gone.model_dump_json())
    (folder / session_folder.OWNER).chmod(0o600)
    return folder


def test_no_other_user_may_enter_the_folder_of_a_ray(base: Path) -> None:
    folder = session_folder.make_private_folder()
    assert folder.parent == base
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert session_folder.is_private(folder)
    assert session_folder.read_owner(folder) == Process.here()


def test_folders_of_dead_processes_are_removed_and_those_of_live_ones_kept(
    base: Path,
    start_writer: Callable[..., "subprocess.Popen[str]"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = session_folder.make_private_folder()
    dead = session_folder.make_private_folder()
    left = start_writer(write_dead_owner(dead) / "raylet.out")
    unowned = Path(tempfile.mkdtemp(prefix=session_folder.PREFIX, dir=base))
    begun = Path(tempfile.mkdtemp(prefix=session_folder.PREFIX, dir=base))
    long_ago = time.time() - 2 * session_folder.OWNER_WITHIN
    os.utime(unowned, (long_ago, long_ago))
    session_folder.sweep()
    assert left.wait(LONG) == -9
    assert sorted(base.iterdir()) == sorted([live, begun])
    (said,) = caplog.messages
    assert str(dead) in said and "s for that Ray to end" in said


def open_to_all(folder: Path) -> None:
    """Open the folder to every user."""
    folder.chmod(0o777)


def open_record_to_all(folder: Path) -> None:
    """Let every user write the record of the owner."""
    (folder / session_folder.OWNER).chmod(0o666)


def link_record(folder: Path) -> None:
    """Replace the record by a link."""
    record = folder / session_folder.OWNER
    record.rename(folder / "elsewhere.json")
    record.symlink_to(folder / "elsewhere.json")


def give_the_folder_away(folder: Path) -> None:
    """Make another user the owner of the folder."""
    os.chown(folder, OTHER, OTHER)


def give_the_record_away(folder: Path) -> None:
    """Make another user the owner of the record."""
    os.chown(folder / session_folder.OWNER, OTHER, OTHER)


@pytest.mark.parametrize(
    "plant",
    [
        open_to_all,
        open_record_to_all,
        link_record,
        pytest.param(give_the_folder_away, marks=as_root),
        pytest.param(give_the_record_away, marks=as_root),
    ],
)
def test_a_record_that_another_user_could_have_written_is_ignored(
    base: Path, start_writer: Callable[..., "subprocess.Popen[str]"], plant: Callable[[Path], None]
) -> None:
    planted = write_dead_owner(session_folder.make_private_folder())
    bystander = start_writer(planted / "raylet.out")
    plant(planted)
    session_folder.sweep()
    assert planted.exists()
    assert bystander.poll() is None


@as_root
def test_another_users_process_gets_no_signal_though_it_writes_below_the_folder(
    base: Path,
    start_writer: Callable[..., "subprocess.Popen[str]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_folder, "DIES_WITHIN", 0.2)
    base.chmod(0o711)
    folder = base / "open"
    folder.mkdir()
    folder.chmod(0o777)
    bystander = start_writer(folder / "theirs", OTHER)
    own = start_writer(folder / "own")
    session_folder.kill_users(folder)
    assert own.wait(LONG) == -9
    assert bystander.poll() is None


def test_a_place_whose_folders_others_may_rename_is_passed_over(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = base / "shared"
    closed = base / "closed"
    for folder in (shared, closed):
        folder.mkdir(mode=0o755)
    shared.chmod(0o777)
    monkeypatch.setattr(session_folder, "_count_room", lambda: 100)
    monkeypatch.setattr(session_folder, "find_temporary_folder", lambda: shared)
    monkeypatch.setattr(session_folder, "FALLBACK", closed)
    assert session_folder.make_private_folder().parent == closed
    shared.chmod(0o1777)
    assert session_folder.make_private_folder().parent == shared
    monkeypatch.setattr(session_folder, "_count_room", lambda: 3)
    with pytest.raises(ConfigError, match=r"folder for Ray's sockets.*Set RAY_TMPDIR.*sho"):
        session_folder.make_private_folder()


def test_the_logs_are_all_that_is_kept_of_a_folder(base: Path) -> None:
    folder = session_folder.make_private_folder()
    logs = folder / "r/session/logs"
    sockets = folder / "r/session/sockets"
    for made in (logs, sockets):
        made.mkdir(parents=True)
    (folder / "r/session_latest").symlink_to(folder / "r/session")
    (logs / "raylet.out").write_text("said")
    session_folder.remove_private_folder(folder, keep=logs)
    left = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert left == [Path("r/session/logs/raylet.out")]
    assert [path.name for path in logs.parent.iterdir()] == ["logs"]
    session_folder.remove_private_folder(folder)
    assert not folder.exists()
