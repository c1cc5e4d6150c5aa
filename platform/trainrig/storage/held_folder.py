"""Folders on disk that a run holds: nothing is written there any more once somebody removed one.

Writing makes the folders that are missing. For a run whose folder was removed that would bring back
a part of it, which the same command would then take for the rest of a run.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainrig.errors import FolderGone


@dataclass
class _Held:
    inode: int
    is_ours: Callable[[], bool]
    deleted: bool = False  # by this process, as of a run that is refused


_held: dict[str, _Held] = {}  # of this process, by path


@contextlib.contextmanager
def hold_folder(folder: str, is_ours: Callable[[], bool]) -> Iterator[None]:
    """Have what writes below `folder` raise FolderGone once it is removed or replaced by another.

    `is_ours`: asked where the folder has another inode than before, which a network file system may
    give it at any time. Raises FolderGone if the folder is not there, and in place of whatever the
    block raises once it is gone.
    """
    path = str(Path(folder).absolute())
    before = _held.get(path)
    _held[path] = _Held(_read_inode(path), is_ours)
    try:
        yield
    except Exception:
        if not _held[path].deleted:
            check_held(path)
        raise
    finally:
        del _held[path]
        if before:
            _held[path] = before


def expect_deletion(folder: str) -> None:
    """Note that this process itself deletes `folder`: an error in its block is raised as it is."""
    if held := _held.get(str(Path(folder).absolute())):
        held.deleted = True


def check_held(path: str) -> str | None:
    """Return the held folder that `path` lies in, if there is one. Raises FolderGone."""
    if not _held:
        return None
    target = Path(path).absolute()
    for parent in (target, *target.parents):
        if held := _held.get(str(parent)):
            inode = _read_inode(str(parent))
            if inode != held.inode:
                if not held.is_ours():
                    raise _describe_gone(str(parent), "replaced by another")
                held.inode = inode
            return str(parent)
    return None


def make_parent(path: str) -> None:
    """Make the folder of the file `path`, and those above it. Raises FolderGone.

    Of those, a folder that is held is not made: where it is removed at this very moment, the file
    has no folder.
    """
    held = check_held(path)
    parent = Path(path).parent
    if held is None:
        parent.mkdir(parents=True, exist_ok=True)
        return
    missing = Path(path).absolute().parent.relative_to(held).parts
    for count in range(1, len(missing) + 1):
        Path(held, *missing[:count]).mkdir(exist_ok=True)


def _read_inode(folder: str) -> int:
    try:
        return Path(folder).stat().st_ino
    except FileNotFoundError:
        raise _describe_gone(folder, "removed") from None


def _describe_gone(folder: str, what: str) -> FolderGone:
    return FolderGone(
        f"{folder}: {what} while the run was going on, so the run was ended and nothing more is "
        "written there; the same command begins anew"
    )
