"""Protection of a run's folder: once the folder was removed, the run writes nothing there.

Writes create missing folders. For a run whose folder was removed, a write would bring back a part
of the folder, and the same command would then resume from that incomplete part.
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
    deleted: bool = False  # True once this process deletes the folder, as a refused run does


_held: dict[str, _Held] = {}  # folders that this process holds, by path


@contextlib.contextmanager
def hold_folder(folder: str, is_ours: Callable[[], bool]) -> Iterator[None]:
    """Make writes below `folder` raise FolderGone once the folder is removed or replaced.

    `is_ours` is called when the inode of the folder has changed, which also happens at any time on
    a network file system, and returns whether the folder is still the same. Raises FolderGone if
    the folder does not exist at the start, or in place of the block's error if the folder is gone
    by then.
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
    """Note that this process deletes `folder`, so that errors in its block are raised unchanged."""
    if held := _held.get(str(Path(folder).absolute())):
        held.deleted = True


def check_held(path: str) -> str | None:
    """Return the held folder that contains `path`, or None. Raises FolderGone if it was removed."""
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
    """Create the parent folders of the file `path`. Raises FolderGone.

    A held folder is never created: if another process removes the held folder during this call,
    the subfolder cannot be made, and FileNotFoundError is raised.
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
        f"{folder}: {what} during the run, so the run stopped and writes nothing more; run "
        "the same command to begin again"
    )
