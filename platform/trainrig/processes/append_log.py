"""Files that grow: on a disk one that is appended to, in a bucket a folder of segments.

S3 cannot append. There, `metrics.jsonl` is a folder: each writer puts what it has as an object of
its own, puts it again with more in it every few seconds, and begins another once it is large. So no
writer ever touches another's, and a reader finds whole segments only. `read` and `lines` take
either form.
"""

import errno
import functools
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from trainrig import storage
from trainrig.errors import ClusterError

log = logging.getLogger(__name__)
LINES = ".jsonl"  # what files of lines are called
LINE_LIMIT = 4096  # bytes of one appended line: more could interleave with another process's
SEGMENT = 256 * 2**10  # bytes after which the next segment begins: what one flush sends, at most
FLUSH_SECONDS = 5.0
READERS = 16  # segments fetched at a time
PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN}  # that a later try may not meet
ONE_LINE = re.compile(r"/\d{20}\.[0-9a-f]{8}\.jsonl$")  # what append_line puts in a bucket


class Appender(Protocol):
    """What one process appends."""

    def write(self, data: bytes) -> None:
        """Append `data`; on a disk it is in the file when this returns, or, where that takes no
        more, before anything later is."""
        ...

    def flush(self) -> None:
        """Return once all that was written can be read by others. Raises ClusterError."""
        ...

    def close(self) -> None:
        """Flush, and write no more."""
        ...


def open_appender(path: str, writer: str, flush_seconds: float = FLUSH_SECONDS) -> Appender:
    """For appending to `path` as `writer`, a name that no other writer to it has.

    In a bucket, others may have to wait `flush_seconds` for what was appended, or for a flush.
    """
    if not path.startswith(storage.S3):
        return _File(path)
    return _Segments(f"{path}/{writer}", Path(path).suffix, flush_seconds)


def append_line(path: str, line: bytes) -> None:
    """Append one line to `path` for good; several processes may do so at once.

    One that a full disk does not take is kept, and written before the next that this process
    appends to `path`.
    """
    assert len(line) <= LINE_LIMIT, f"line of {len(line)} bytes"
    if path.startswith(storage.S3):
        # By time, so that the names of all writers' lines sort as they were written.
        storage.write(f"{path}/{time.time_ns():020d}.{secrets.token_hex(4)}{LINES}", line)
        return
    with _unwritten_lock:
        waiting = _unwritten.pop(path, b"") + line
        file = _File(path)
        try:
            file.write(waiting)
        finally:
            if file.waiting:
                _unwritten[path] = file.waiting
            file.abandon()


def read_lines(path: str) -> Iterator[bytes]:
    """All whole lines of `path` so far, each writer's in its order; none if there is no such file.

    A line that a process died in, or a full disk cut, is none; what follows it is not lost.
    """
    parts = _list_parts(path)
    with ThreadPoolExecutor(READERS) as threads:
        contents = threads.map(lambda p: storage.read(p[0]) if p[1] else _find_settled(p[0]), parts)
        for content in contents:
            yield from (line for line in content.split(b"\n")[:-1] if line)


class Tail:
    """What is appended to `path` from the first look on, look by look."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: dict[str, int] = {}  # bytes, of each part
        self._over: set[str] = set()  # parts that will not grow and were read to their end

    def read_new_lines(self) -> Iterator[bytes]:
        """The whole lines that came since the last look."""
        for name, grows in _list_parts(self._path):
            if name in self._over:
                continue
            at = self._read.get(name, 0)
            new = _read_from(name, at)
            whole = new.rfind(b"\n") + 1
            self._read[name] = at + whole
            if not grows:
                self._over.add(name)
            yield from (line for line in new[:whole].split(b"\n") if line)


def _read_from(name: str, at: int) -> bytes:
    """The bytes of the file `name` from `at` on."""
    with storage.open_read(name) as stream:
        stream.seek(at)
        return stream.read()


def _list_parts(path: str) -> list[tuple[str, bool]]:
    """The files that hold what was appended to `path`, in order, each with whether it may grow."""
    if not path.startswith(storage.S3):
        return [(path, True)] if storage.exists(path) else []
    names = storage.list_files(path)
    newest = {name.rpartition("-")[0]: name for name in names}  # of each writer
    return [
        (name, name == newest[name.rpartition("-")[0]] and not ONE_LINE.search(name))
        for name in names
    ]


def _find_settled(segment: str) -> bytes:
    """What will not change any more."""
    return _read_line(segment) if ONE_LINE.search(segment) else _read_unchanging(segment)


@functools.lru_cache(maxsize=4096)  # of at most SEGMENT bytes and a line
def _read_unchanging(segment: str) -> bytes:
    return storage.read(segment)


# More than a group of 8,000 ranks puts down in a dozen attempts, of a quarter of a kilobyte each: a
# cache with less room than is read in a row finds nothing at all.
@functools.lru_cache(maxsize=2**17)
def _read_line(segment: str) -> bytes:
    return storage.read(segment)


class _File:
    """On a disk: each write is one write of the system's, to a file opened for appending.

    What the disk does not take (it is full, say) waits here, in order, and is tried again with the
    next write: a run goes on without its last lines for longer than without room for checkpoints,
    which end it. A write that was cut in the middle is taken back, so that no torn line stays.
    """

    def __init__(self, path: str) -> None:
        storage.make_parent(path)
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._of_lines = path.endswith(LINES)
        self.waiting = b""

    def write(self, data: bytes) -> None:
        self.waiting += data
        self.flush()

    def flush(self) -> None:
        """Try to append what waits. A disk that takes nothing now is tried again later."""
        if not self.waiting:
            return
        storage.check_held(self._path)
        torn = b"\n" if self._of_lines and self._is_torn() else b""
        data = torn + self.waiting
        try:
            written = os.write(self._descriptor, data)
        except OSError as problem:
            if problem.errno not in PASSING:
                raise
            _say_waiting(self._path, str(problem.strerror))
            return
        if written < len(data):
            self._take_back(data[:written])
            _say_waiting(self._path, f"{written} of {len(data)} bytes written")
            return
        self.waiting = b""

    def _take_back(self, written: bytes) -> None:
        """Cut off what was written last, unless another process has appended since."""
        begin = os.fstat(self._descriptor).st_size - len(written)
        if written and os.pread(self._descriptor, len(written), begin) == written:
            os.ftruncate(self._descriptor, begin)

    def _is_torn(self) -> bool:
        """Whether the last line was somebody's who died in it: ours must not become part of it."""
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def close(self) -> None:
        self.flush()
        waiting = len(self.waiting)
        self.abandon()
        if waiting:
            raise ClusterError(f"{self._path}: no room for the last {waiting} bytes; free some")

    def abandon(self) -> None:
        """Close the file, whatever still waits."""
        os.close(self._descriptor)


def _say_waiting(path: str, problem: str) -> None:
    if path not in _told_waiting:
        _told_waiting.add(path)
        log.warning("%s: cannot be appended to (%s); kept, and tried again", path, problem)


def warn_torn_line(path: str, line: bytes) -> None:
    """Say that `line` of `path` is torn: once, as every look at the file meets it again."""
    if (path, line) not in _told_torn:
        _told_torn.add((path, line))
        log.warning("%s: passed over a torn line: %.60s…", path, line.decode(errors="replace"))


# Of this process: lines that a disk did not take, by file; and what was said.
_unwritten: dict[str, bytes] = {}
_unwritten_lock = threading.Lock()
_told_waiting: set[str] = set()
_told_torn: set[tuple[str, bytes]] = set()


class _Segments:
    """In a bucket: a thread puts what there is now and then. Writing never waits for it."""

    def __init__(self, stem: str, suffix: str, flush_seconds: float) -> None:
        self._stem, self._suffix, self._flush_seconds = stem, suffix, flush_seconds
        self._number, self._put = 1, 0  # of the newest segment, and how much of it has been put
        self._waiting = {1: bytearray()}  # the newest segment, and those before it not yet put
        self._problem: Exception | None = None
        self._data_lock, self._put_lock = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flush {stem}", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        if self._problem:
            raise self._problem
        with self._data_lock:
            self._waiting[self._number] += data
            if len(self._waiting[self._number]) >= SEGMENT:
                self._number += 1
                self._waiting[self._number] = bytearray()

    def flush(self) -> None:
        if self._problem:
            raise self._problem
        with self._put_lock:
            with self._data_lock:
                segments = {number: bytes(data) for number, data in self._waiting.items()}
            for number, data in segments.items():
                self._put_segment(number, data)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.flush()

    def _put_segment(self, number: int, data: bytes) -> None:
        if len(data) > self._put:
            storage.write(f"{self._stem}-{number:06d}{self._suffix}", data)
            self._put = len(data)
        with self._data_lock:
            if number < self._number and len(self._waiting[number]) == len(data):
                del self._waiting[number]
                self._put = 0

    def _run(self) -> None:
        while not self._closed.wait(self._flush_seconds):
            try:
                self.flush()
            except Exception as problem:  # told to the next one who writes
                self._problem = problem
                return
