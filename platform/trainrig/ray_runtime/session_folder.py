"""Private folders of local Rays: created, found again after a crash, and removed.

Ray gives its session folder and the folder of its sockets the mode 0777, so that any user of the
machine could replace the raylet's socket. Ray's temporary folder therefore lies in a private folder
that only this user can enter, a new one for every start.

The private folder holds a record of its owner, the process that started Ray. The record is trusted
only if no other user can have written it. Ray's processes are found by the files that they hold
open below the folder: workers outlive a killed raylet, and then have no parent that is known.
"""

import contextlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Set
from pathlib import Path

from trainrig.errors import ConfigError
from trainrig.processes.process_identity import PROC, Process, kill_if, read_user

log = logging.getLogger(__name__)
PREFIX = "trainrig-ray-"  # prefix of private folders' names
RAY = "r"  # Ray's temporary folder, in a private folder
OWNER = "owner.json"  # record of the process that started Ray, in a private folder
FALLBACK = Path("/tmp")  # base folder to use if the usual one is unsuitable
LONGEST_SOCKET = 107  # maximum length of a Unix socket's path, in bytes
SOCKET = (
    "session_2026-11-29_02-15-48_141537_1234567/sockets/plasma_store"  # the longest path of Ray's
)
DIES_WITHIN = 5.0  # time limit for a process to end after SIGKILL, in s
LOOK_AGAIN = 0.05  # s between two checks for the end of a process
OWNER_WITHIN = 60.0  # s after which the maker of a folder without an owner record must be dead


def make_private_folder() -> Path:
    """Create a folder that only this user can enter, and record this process as its owner.

    Raises ConfigError if no base folder is suitable.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_find_base()))  # with mode 0700
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with os.fdopen(os.open(folder / OWNER, flags, 0o600), "w") as file:
        file.write(Process.here().model_dump_json())
    return folder


def remove_private_folder(folder: Path, keep: Path | None = None) -> None:
    """Remove a private folder that is no longer used, except for `keep`, a folder below it."""
    if keep is None or not keep.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path == keep:
            continue
        if path in keep.parents:
            remove_private_folder(path, keep)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sweep() -> None:
    """Remove the private folders of dead owners, and kill the remaining processes of their Rays.

    Folders and records that another user could have written are ignored.
    """
    for base in _list_bases():
        for folder in base.glob(f"{PREFIX}*"):
            if not is_private(folder):
                continue
            if (owner := read_owner(folder)) is None:
                _remove_unowned(folder)
            elif owner.gone():
                began = time.monotonic()
                kill_users(folder)
                remove_private_folder(folder)
                log.warning(
                    "a process that was killed left its Ray in %s; waited %.1f s for "
                    "that Ray to end, and started another Ray and all workers",
                    folder,
                    time.monotonic() - began,
                )


def is_private(folder: Path) -> bool:
    """Return whether `folder` is a folder of this user that no other user may enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and stat.S_IMODE(found.st_mode) & 0o077 == 0
    )


def read_owner(folder: Path) -> Process | None:
    """Return the process that the record in `folder` names; None if the record is not trusted.

    The record is trusted if it is a regular file of this user, and only this user may write it.
    """
    try:
        with os.fdopen(
            os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        ) as file:
            found = os.fstat(file.fileno())
            own = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o022 == 0
            if not (own and stat.S_ISREG(found.st_mode)):
                return None
            return Process.model_validate_json(file.read())
    except (OSError, ValueError):  # the file is gone, a link, or torn
        return None


def kill_users(folder: Path, spared: Set[int] = frozenset()) -> None:
    """Kill every other process of this user that has a file below `folder` open for writing.

    Leaves the `spared` process ids alone. Returns once the others are gone, but after DIES_WITHIN
    seconds at the latest.
    """
    until = time.monotonic() + DIES_WITHIN
    while (left := find_users(folder) - spared) and time.monotonic() < until:
        for pid in left:
            kill_if(pid, lambda pid: _uses(pid, folder))
        time.sleep(LOOK_AGAIN)


def find_users(folder: Path) -> set[int]:
    """Return the ids of the processes that `kill_users` kills; empty on systems without /proc."""
    pids = {int(path.name) for path in PROC.glob("[0-9]*")} - {os.getpid()}
    return {pid for pid in pids if _uses(pid, folder)}


def _uses(pid: int, folder: Path) -> bool:
    """Return whether process `pid` of this user has a file below `folder` open for writing."""
    below = f"{folder}/"
    with contextlib.suppress(OSError):  # the process has ended, or is another user's
        for path in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(path).startswith(below) and path.lstat().st_mode & stat.S_IWUSR:  # noqa: PTH115
                    return read_user(pid) == os.getuid()
    return False


def _remove_unowned(folder: Path) -> None:
    """Remove `folder` if its maker died before writing the owner record."""
    with contextlib.suppress(OSError):  # the folder is not empty, or gone
        if time.time() - folder.stat().st_mtime > OWNER_WITHIN:
            folder.rmdir()


def _find_base() -> Path:
    """Return the base folder for private folders. Raises ConfigError if none is suitable."""
    for base in _list_bases():
        with contextlib.suppress(OSError):
            base.mkdir(parents=True, exist_ok=True)
        if _fits(base) and _is_guarded(base):
            return base
    raise ConfigError(
        f"{_list_bases()[0]}: no folder for Ray's sockets: the name is longer than "
        f"{_count_room()} bytes, or other users may rename what is in it. Set RAY_TMPDIR "
        "to a short path that only you can write to"
    )


def _list_bases() -> list[Path]:
    """Return the base folders that may hold private folders, the usual one first."""
    return list(dict.fromkeys([find_temporary_folder(), FALLBACK]))


def find_temporary_folder() -> Path:
    """Return the folder in which Ray creates its temporary folder by default."""
    on_linux = os.environ.get("TMPDIR") if sys.platform == "linux" else None
    return Path(os.environ.get("RAY_TMPDIR") or on_linux or FALLBACK).absolute()


def _fits(base: Path) -> bool:
    """Return whether the paths of Ray's sockets are short enough below `base`."""
    return len(os.fsencode(base)) <= _count_room()


def _count_room() -> int:
    return LONGEST_SOCKET - len(f"/{PREFIX}12345678/{RAY}/{SOCKET}")


def _is_guarded(base: Path) -> bool:
    """Return whether no other user but root may rename or remove this user's folders in `base`."""
    try:
        found = base.stat()
    except OSError:
        return False
    if not (stat.S_ISDIR(found.st_mode) and os.access(base, os.W_OK | os.X_OK)):
        return False
    closed = found.st_uid in (0, os.geteuid()) and stat.S_IMODE(found.st_mode) & 0o022 == 0
    return closed or bool(found.st_mode & stat.S_ISVTX)
