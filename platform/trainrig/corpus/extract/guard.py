"""Extraction in a child process, so that a page that kills its process costs only itself.

The limits that decide about pages belong to the extractor and depend on the page alone. The limits
here are far above them, for unforeseen failures: an endless loop, a leak, a crash in a library. A
page that hits one becomes a *failed page*, of which the URL, the digest and the cause are kept.
When a page fails can depend on the machine, so callers store failed pages and pass them in when the
work is repeated: such a page is not tried again, and the outcome is the same.

The child is a fresh interpreter, not a fork, because the caller may have threads (it has in a Ray
worker). Bodies are passed in shared memory, and each batch is one exchange of messages.
"""

import contextlib
import dataclasses
import hashlib
import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self

from trainrig.config import Settings
from trainrig.corpus.extract.extract_page import extract
from trainrig.corpus.extract.extractors import Extracted, NotExtracted
from trainrig.corpus.read import RawPage
from trainrig.processes.child_process import end_process

Outcome = Extracted | NotExtracted
Cause = Literal["cpu_time", "memory", "crashed"]

BATCH = 64  # pages
BATCH_BYTES = 16 * 2**20  # bytes of bodies, unless a single page is larger
LENGTH = struct.Struct("<Q")  # number of bytes, written before each message
_CAUSES: dict[int, Cause] = {
    signal.SIGPROF: "cpu_time",  # the timer that the child sets before each page
    signal.SIGABRT: "memory",  # libraries abort when an allocation fails
    signal.SIGKILL: "memory",  # the kernel kills when memory runs out
}
# Share of the allowed memory. A crash above it counts as a failed allocation, as tables double in
# size.
FULL = 0.25


@dataclass(frozen=True)
class FailedPage:
    """A page that killed the process that extracted it."""

    url: str
    sha256: str  # SHA-256 of the body, in hex
    cause: Cause


class Guard:
    """Extracts pages in a child process; use it as a context manager, which ends the child.

    A page fails if it takes more than `cpu_seconds` or needs `memory` bytes more than the child
    uses without pages. `failed_pages` are those of an earlier run.
    """

    def __init__(
        self,
        settings: Settings,
        failed_pages: Iterable[FailedPage] = (),
        *,
        # 10 MB with 499,000 paragraphs, within all limits of MainContent, take 6.6 s and 0.5 GB.
        cpu_seconds: float = 60.0,  # limit of one page
        memory: int = 4 * 2**30,  # bytes
        by: Callable[[RawPage, Settings], Outcome] = extract,  # type: ignore[assignment]
    ) -> None:
        self._task = pickle.dumps((by, settings, cpu_seconds, memory))
        self._memory = memory
        self._failed_pages = {
            (failed_page.url, failed_page.sha256): failed_page for failed_page in failed_pages
        }
        self._child: _Child | None = None

    @property
    def failed_pages(self) -> list[FailedPage]:
        """The known failed pages, including earlier runs, in order of failure."""
        return list(self._failed_pages.values())

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the current child so far; 0 where the system does not report them."""
        return self._child.cpu_seconds if self._child else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process. The next extraction starts another."""
        if self._child:
            self._child.close()
            self._child = None

    def extract(self, pages: Iterable[RawPage]) -> Iterator[Outcome]:
        """Extract each page; yield the outcomes in order."""
        for batch in _iterate_batches(pages):
            yield from self._extract_batch(batch)

    def _extract_batch(self, pages: Sequence[RawPage]) -> Iterator[Outcome]:
        urls = {url for url, _ in self._failed_pages}
        known = [self._find_failed_page(page) if page.url in urls else None for page in pages]
        to_try = [
            page for page, failed_page in zip(pages, known, strict=True) if failed_page is None
        ]
        outcomes = self._try(to_try)
        for failed_page in known:
            yield next(outcomes) if failed_page is None else NotExtracted(failed_page.cause)

    def _find_failed_page(self, page: RawPage) -> FailedPage | None:
        return self._failed_pages.get((page.url, hashlib.sha256(page.body).hexdigest()))

    def _try(self, pages: Sequence[RawPage]) -> Iterator[Outcome]:
        left = list(pages)
        killed_before = False
        while left:
            self._child = self._child or _Child(self._task)
            for outcome in self._child.extract(left):
                left = left[1:]
                killed_before = False
                yield outcome
            if not left:
                return
            ended_by, memory = self._child.end()
            self.close()
            # A kill from outside may have been meant for another process, so the page is tried
            # twice.
            if ended_by == signal.SIGKILL and not killed_before:
                killed_before = True
                continue
            full = memory > FULL * self._memory
            cause = _CAUSES.get(ended_by, "memory" if full else "crashed")
            failed_page = FailedPage(left[0].url, hashlib.sha256(left[0].body).hexdigest(), cause)
            self._failed_pages[failed_page.url, failed_page.sha256] = failed_page
            left = left[1:]
            killed_before = False
            yield NotExtracted(failed_page.cause)


class _Child:
    """A child process that extracts pages (guarded.py), and the memory shared with it.

    Raises RuntimeError if the process cannot start.
    """

    def __init__(self, task: bytes) -> None:
        self._shared = _open_memory_file()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainrig.corpus.extract.guarded", str(self._shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._shared],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._send(task)
        assert self._process.stdout is not None
        ready = receive(self._process.stdout)
        if ready is None:
            raise RuntimeError(
                f"the process {self._process.args!r} ended with exit code {self._process.wait()}"
            )
        self._without_pages = int(ready)  # bytes of memory before the first page

    def extract(self, pages: Sequence[RawPage]) -> Iterator[Outcome]:
        """Yield the outcomes of the pages in order; fewer than `pages` if the child dies."""
        size = sum(len(page.body) for page in pages)
        os.ftruncate(self._shared, max(size, 1))
        with mmap.mmap(self._shared, max(size, 1)) as memory:
            at = 0
            for page in pages:
                memory[at : at + len(page.body)] = page.body
                at += len(page.body)
        self._send(pickle.dumps([(dataclasses.replace(p, body=b""), len(p.body)) for p in pages]))
        assert self._process.stdout is not None
        for _ in pages:
            message = receive(self._process.stdout)
            if message is None:
                return
            yield pickle.loads(message)

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next read then finds the end of the stream
            send(self._process.stdin, message)

    @property
    def cpu_seconds(self) -> float:
        """User and system time of the child so far, in seconds (Linux)."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self) -> tuple[int, int]:
        """Wait for the child; return the signal that ended it (or 0), and the pages' memory."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        pages_took = usage.ru_maxrss * 1024 - self._without_pages
        return max(0, -self._process.returncode), pages_took

    def close(self) -> None:
        """End the child process and release the shared memory."""
        end_process(self._process)
        os.close(self._shared)


def _open_memory_file() -> int:
    """Open a file without a name, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pages")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write one message to `pipe`, after its length."""
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Read the next message, or None if the other side has closed the pipe."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    length = LENGTH.unpack(head)[0]
    message = pipe.read(length)
    return message if len(message) == length else None


def _iterate_batches(pages: Iterable[RawPage]) -> Iterator[list[RawPage]]:
    batch: list[RawPage] = []
    size = 0
    for page in pages:
        if batch and (len(batch) == BATCH or size + len(page.body) > BATCH_BYTES):
            yield batch
            batch = []
            size = 0
        batch.append(page)
        size += len(page.body)
    if batch:
        yield batch
