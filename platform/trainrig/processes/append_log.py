"""Append-only log files: one file on a disk, a folder of segments in an S3 bucket.

S3 cannot append. In a bucket, `metrics.jsonl` is a folder of segments, each written by one writer.
A writer uploads its current segment again with more data every few seconds, and begins another
segment once the current one is large. No writer touches another writer's segments, and a reader
finds whole segments only. `read_lines` and `Tail` read both forms.
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
LINES = ".jsonl"  # suffix of files of lines
LINE_LIMIT = 4096  # bytes of one appended line: a longer one could mix with another process's line
SEGMENT = 256 * 2**10  # bytes after which the next segment begins, about the maximum of one flush
FLUSH_SECONDS = 5.0
READERS = 16  # segments that are fetched concurrently
PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN}  # errors that may be transient
ONE_LINE = re.compile(r"/\d{20}\.[0-9a-f]{8}\.jsonl$")  # objects that append_line writes to S3


class Appender(Protocol):
    """The writing end of a log, for one process."""

    def write(self, data: bytes) -> None:
        """Append `data`.

        On a disk, the data is in the file when this returns. If the disk is full, the data is kept
        in memory and written before any later data.
        """
        ...

    def flush(self) -> None:
        """Return once other processes can read all written data. Raises ClusterError."""
        ...

    def close(self) -> None:
        """Flush and close; nothing may be written afterwards."""
        ...


def open_appender(path: str, writer: str, flush_seconds: float = FLUSH_SECONDS) -> Appender:
    """Open the log `path` for appending as `writer`, a name that no other writer of the log has.

    In a bucket, appended data becomes readable after a flush, or `flush_seconds` later.
    """
    if not storage.is_remote(path):
        return _File(path)
    return _Segments(f"{path}/{writer}", Path(path).suffix, flush_seconds)


def append_line(path: str, line: bytes) -> None:
    """Append one line to `path`; several processes may do so concurrently.

    If the disk is full, the line is kept in memory and written before the next line that this
    process appends to `path`.
    """
    assert len(line) <= LINE_LIMIT, f"line of {len(line)} bytes"
    if storage.is_remote(path):
        # The name begins with the time, so that the lines of all writers sort in writing order.
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
    """Yield all complete lines of the log `path`, the lines of each writer in writing order.

    Nothing is yielded if the log does not exist. A line that was cut off, by the death of its
    writer or a full disk, is not complete. Lines after it are still found.
    """
    parts = _list_parts(path)
    with ThreadPoolExecutor(READERS) as threads:
        contents = threads.map(lambda p: storage.read(p[0]) if p[1] else _find_settled(p[0]), parts)
        for content in contents:
            yield from (line for line in content.split(b"\n")[:-1] if line)


class Tail:
    """Reader of the log `path` that returns only new lines at each call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: dict[str, int] = {}  # bytes read so far, by name of the part
        self._over: set[str] = set()  # parts that will not grow and were read to their end

    def read_new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were appended since the last call.

        The first call yields all lines.
        """
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
    """Read the file `name` from byte `at` to its end."""
    with storage.open_read(name) as stream:
        stream.seek(at)
        return stream.read()


def _list_parts(path: str) -> list[tuple[str, bool]]:
    """List the files of the log `path` in order, each with whether it may still grow."""
    if not storage.is_remote(path):
        return [(path, True)] if storage.exists(path) else []
    names = storage.list_files(path)
    newest = {name.rpartition("-")[0]: name for name in names}  # newest segment by writer
    return [
        (name, name == newest[name.rpartition("-")[0]] and not ONE_LINE.search(name))
        for name in names
    ]


def _find_settled(segment: str) -> bytes:
    """Read a segment that will not change any more, from the cache if possible."""
    return _read_line(segment) if ONE_LINE.search(segment) else _read_unchanging(segment)


@functools.lru_cache(maxsize=4096)  # each entry has at most SEGMENT bytes and a line
def _read_unchanging(segment: str) -> bytes:
    return storage.read(segment)


# The cache holds more lines than 8,000 ranks write in a dozen attempts, a quarter of a kilobyte
# each. A smaller cache than the number of lines read in a row would never hit.
@functools.lru_cache(maxsize=2**17)
def _read_line(segment: str) -> bytes:
    return storage.read(segment)


class _File:
    """Appender to a file on a disk, where each write is one system call in append mode.

    Data that the disk does not accept, for instance because it is full, is kept in order and tried
    again with the next write. The run continues without its last log lines until a full disk stops
    a checkpoint. A partial write is undone, so that no torn line remains.
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
        """Try to append the waiting data; after a transient error the data keeps waiting."""
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
        """Truncate the file by the bytes `written` last, unless another process appended since."""
        begin = os.fstat(self._descriptor).st_size - len(written)
        if written and os.pread(self._descriptor, len(written), begin) == written:
            os.ftruncate(self._descriptor, begin)

    def _is_torn(self) -> bool:
        """Return whether the last line has no end, because its writer died while writing it."""
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def close(self) -> None:
        self.flush()
        waiting = len(self.waiting)
        self.abandon()
        if waiting:
            raise ClusterError(f"{self._path}: no space for the last {waiting} bytes; free some")

    def abandon(self) -> None:
        """Close the file without writing the data that still waits."""
        os.close(self._descriptor)


def _say_waiting(path: str, problem: str) -> None:
    if path not in _told_waiting:
        _told_waiting.add(path)
        log.warning(
            "%s: cannot be appended to (%s); the lines are kept and written later", path, problem
        )


def warn_torn_line(path: str, line: bytes) -> None:
    """Warn that `line` of `path` is torn, once only, as every read finds the line again."""
    if (path, line) not in _told_torn:
        _told_torn.add((path, line))
        log.warning("%s: skipped an incomplete line: %.60s…", path, line.decode(errors="replace"))


_unwritten: dict[str, bytes] = {}  # lines that a full disk did not accept, by file
_unwritten_lock = threading.Lock()
_told_waiting: set[str] = set()
_told_torn: set[tuple[str, bytes]] = set()


class _Segments:
    """Appender to a bucket, whose thread uploads the current segment every few seconds.

    `write` never waits for an upload.
    """

    def __init__(self, stem: str, suffix: str, flush_seconds: float) -> None:
        self._stem = stem
        self._suffix = suffix
        self._flush_seconds = flush_seconds
        self._number = 1  # number of the newest segment
        self._put = 0  # bytes of the newest segment that have been uploaded
        self._waiting = {1: bytearray()}  # the newest segment, and earlier ones not yet uploaded
        self._problem: Exception | None = None
        self._data_lock = threading.Lock()
        self._put_lock = threading.Lock()
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
            except Exception as problem:  # the next write or flush raises it
                self._problem = problem
                return
