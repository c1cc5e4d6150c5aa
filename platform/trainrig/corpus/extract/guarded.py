"""Child process of a Guard: extracts pages until its parent exits or a page kills it.

The parent treats the signal that ends this process as the outcome of the current page: SIGPROF
means that its time ran out, and SIGABRT its memory. See `Guard`.

python -m trainrig.corpus.extract.guarded DESCRIPTOR
"""

import dataclasses
import mmap
import os
import pickle
import resource
import signal
import sys
from pathlib import Path

from trainrig.corpus.extract.extractors import NotExtracted
from trainrig.corpus.extract.guard import FULL, receive, send
from trainrig.corpus.read import RawPage


def main(shared: int) -> None:
    """Answer batches of pages; `shared` is the descriptor of the memory with their bodies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides about signals
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # output that a library prints must not mix with the answers
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    task = receive(requests)
    if task is None:
        return
    extract, settings, cpu_seconds, memory = pickle.loads(task)
    # This extraction loads lazy imports, so their time and memory do not count for a page.
    extract(RawPage("", "text/html", b"<p>A first page.", "", None), settings)
    _limit_memory(memory)
    without_pages = read_peak_memory()
    send(answers, str(without_pages).encode())  # the parent, too, subtracts it from the peak
    while (message := receive(requests)) is not None:
        pages = pickle.loads(message)
        with mmap.mmap(shared, 0, access=mmap.ACCESS_READ) as bodies:
            at = 0
            for page, length in pages:
                body = bodies[at : at + length]
                at += length
                # The timer's signal ends the process even inside a library's native code.
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
                try:
                    outcome = extract(dataclasses.replace(page, body=body), settings)
                except MemoryError:
                    os.abort()  # the parent counts this as a page that needs too much memory
                except Exception:  # an exception of a library costs only this page
                    if read_peak_memory() - without_pages > FULL * memory:
                        os.abort()  # some libraries raise other exceptions when memory runs out
                    outcome = NotExtracted("crashed")
                signal.setitimer(signal.ITIMER_PROF, 0)
                send(answers, pickle.dumps(outcome))


def read_peak_memory() -> int:
    """Return the peak memory of this process in bytes (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_memory(allowed: int) -> None:
    """Limit the address space to `allowed` bytes more than this process uses now (Linux)."""
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        return
    used = int(sizes.read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + allowed, used + allowed))


if __name__ == "__main__":
    main(int(sys.argv[1]))
