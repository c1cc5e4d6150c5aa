"""Checks, before any work begins, that output files can be written."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError

FULL = (errno.ENOSPC, errno.EDQUOT)  # a full disk is no ConfigError: the run file is right


def check_folder(folder: str) -> None:
    """Raise ConfigError if no file can be created in `folder`, which need not exist yet.

    The check creates a file and removes it again. A bucket is not checked, because the check would
    cost as much as the first write, which reports the same error.
    """
    if storage.is_remote(folder):
        return
    with _explain_errors(folder):
        there = _find_nearest(Path(folder))
        if not there.is_dir():
            raise ConfigError(
                f"{folder}: {_name_place(there, folder)} is a file; name another folder"
            )
        _try_file(there)


def check_file(path: str) -> None:
    """Raise ConfigError if no file can be created or replaced at `path`."""
    if storage.is_remote(path):
        return
    if Path(path).is_dir():
        raise ConfigError(f"{path}: is a folder; name a file")
    check_folder(str(Path(path).parent))


def _find_nearest(path: Path) -> Path:
    """Return `path` if it exists, or its nearest parent that exists."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises for invalid file names
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _name_place(there: Path, folder: str) -> str:
    return "it" if there == Path(folder) else str(there)


def _try_file(folder: Path) -> None:
    """Create a file in `folder` and remove it again."""
    # Permissions are not enough: root has them all, even on a disk that is mounted read-only.
    probe = folder / f".probe-{secrets.token_hex(8)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    probe.unlink()


@contextlib.contextmanager
def _explain_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        # some folders, such as /proc, answer that a new file does not exist
        why = {errno.ENOENT: "no file can be created there"}.get(error.errno or 0, error.strerror)
        raise ConfigError(f"{folder}: cannot be written: {why}; name another folder") from None
    except ValueError as error:  # the name contains a NUL byte
        raise ConfigError(f"{folder!r}: not a valid folder name: {error}") from None
