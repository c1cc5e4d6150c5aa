"""Whether results can be put where they are wanted: found out by doing so, before any work."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError

FULL = (errno.ENOSPC, errno.EDQUOT)  # no mistake of the user's: free some, and it works


def check_folder(folder: str) -> None:
    """Raise ConfigError if files cannot be made in `folder`, which need not be there yet.

    Nothing is left behind. Buckets say no themselves: a question costs as much as the first write.
    """
    if folder.startswith(storage.S3):
        return
    with _explain_errors(folder):
        there = _find_nearest(Path(folder))
        if not there.is_dir():
            raise ConfigError(
                f"{folder}: {_name_place(there, folder)} is a file; name another folder"
            )
        _make_file(there)


def check_file(path: str) -> None:
    """Raise ConfigError if no file can be made at `path`, or put in place of one there."""
    if path.startswith(storage.S3):
        return
    if Path(path).is_dir():
        raise ConfigError(f"{path}: is a folder; name a file")
    check_folder(str(Path(path).parent))


def _find_nearest(path: Path) -> Path:
    """`path`, or what of the folders above it is there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises for names that no file may have
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _name_place(there: Path, folder: str) -> str:
    return "it" if there == Path(folder) else str(there)


def _make_file(folder: Path) -> None:
    # Rights alone tell little: root has them all, also on a disk that is mounted to be read.
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
        why = {errno.ENOENT: "no files can be made there"}.get(error.errno or 0, error.strerror)
        raise ConfigError(f"{folder}: cannot be written: {why}; name another folder") from None
    except ValueError as error:  # a name with a NUL
        raise ConfigError(f"{folder!r}: no name of a folder: {error}") from None
