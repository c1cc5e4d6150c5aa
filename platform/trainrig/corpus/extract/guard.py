"""Extraction in a child process, so that a page that ends the process costs that page alone.

The limits that decide about pages are the extractor's own, and depend on the page alone. Those here
are far above them, for what they do not foresee: an endless loop, a leak, a fault in a library. A
page that meets one becomes a *failed page*: its URL and digest are kept, and what it died of. When
it died may depend on the machine, so whoever calls writes failed pages down, and gives them back
when the work is done again: then the page is not tried, and the outcome is the same.

The child is a fresh interpreter, not a fork: the caller may have threads (in a Ray worker it does).
Bodies pass through shared memory, and one batch is one exchange of messages.
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
from trainrig.corpus.extract.outcome import Extracted, NotExtracted
from trainrig.corpus.read import RawPage
from trainrig.processes.process_group import end_process

Outcome = Extracted | NotExtracted
Cause = Literal["cpu_time", "memory", "crashed"]

BATCH = 64  # pages
BATCH_BYTES = 16 * 2**20  # of bodies, but for a page that is larger by itself
LENGTH = struct.Struct("<Q")  # before each message, its bytes
_CAUSES: dict[int, Cause] = {
    signal.SIGPROF: "cpu_time",  # the timer that the child sets before each page
    signal.SIGABRT: "memory",  # what libraries do when an allocation fails
    signal.SIGKILL: "memory",  # what the kernel does when there is none
}
# Of the allowed memory. A fault at more is taken for an allocation that failed: tables double.
FULL = 0.25


@dataclass(frozen=True)
class FailedPage:
    """A page that its extraction did not survive."""

    url: str
    sha256: str  # of the body, hex
    cause: Cause


class Guard:
    """Extracts pages in a child process; use as a context, whose end ends the child.

    Pages that do not end within `cpu_seconds` or need `memory` bytes more than the child does
    without them are given up. `failed_pages` are those of an earlier try.
    """

    def __init__(
        self,
        settings: Settings,
        failed_pages: Iterable[FailedPage] = (),
        *,
        # 10 MB of 499,000 paragraphs, within all limits of MainContent's, take 6.6 s and 0.5 GB.
        cpu_seconds: float = 60.0,  # a page
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
        """All that are known, earlier ones included, in the order in which they were met."""
        return list(self._failed_pages.values())

    @property
    def cpu_seconds(self) -> float:
        """What the child has used so far; 0 where the system does not tell."""
        return self._child.cpu_seconds if self._child else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child. Extracting again starts another."""
        if self._child:
            self._child.close()
            self._child = None

    def extract(self, pages: Iterable[RawPage]) -> Iterator[Outcome]:
        """The outcome of each page, in order."""
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
        left, killed_before = list(pages), False
        while left:
            self._child = self._child or _Child(self._task)
            for outcome in self._child.extract(left):
                left, killed_before = left[1:], False
                yield outcome
            if not left:
                return
            ended_by, memory = self._child.end()
            self.close()
            # A kill from outside may have meant another process: the page gets a second try.
            if ended_by == signal.SIGKILL and not killed_before:
                killed_before = True
                continue
            full = memory > FULL * self._memory
            cause = _CAUSES.get(ended_by, "memory" if full else "crashed")
            failed_page = FailedPage(left[0].url, hashlib.sha256(left[0].body).hexdigest(), cause)
            self._failed_pages[failed_page.url, failed_page.sha256] = failed_page
            left, killed_before = left[1:], False
            yield NotExtracted(failed_page.cause)


class _Child:
    """One process that extracts (guarded.py), and the memory that it shares with this one.

    Raises RuntimeError if it cannot start.
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
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        self._without_pages = int(ready)  # bytes of memory

    def extract(self, pages: Sequence[RawPage]) -> Iterator[Outcome]:
        """The outcomes of the first pages: of all of them, unless the child ends before."""
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
        with contextlib.suppress(BrokenPipeError):  # then reading will say so
            send(self._process.stdin, message)

    @property
    def cpu_seconds(self) -> float:
        """Of user and system time, so far (Linux)."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self) -> tuple[int, int]:
        """Once it has ended: by which signal, 0 if by itself, and how many bytes pages took."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        pages_took = usage.ru_maxrss * 1024 - self._without_pages
        return max(0, -self._process.returncode), pages_took

    def close(self) -> None:
        """End the child and give back the memory."""
        end_process(self._process)
        os.close(self._shared)


def _open_memory_file() -> int:
    """A file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pages")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write one message."""
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message, or None when the other side has ended."""
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
            batch, size = [], 0
        batch.append(page)
        size += len(page.body)
    if batch:
        yield batch
