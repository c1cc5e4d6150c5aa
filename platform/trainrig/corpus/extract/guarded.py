"""The child process of a Guard: extracts pages until its parent ends or a page kills it.

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

from trainrig.corpus.extract.guard import FULL, receive, send
from trainrig.corpus.extract.outcome import NotExtracted
from trainrig.corpus.read import RawPage


def main(shared: int) -> None:
    """Answer batches of pages, whose bodies lie one after the other in `shared`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent's to decide
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not answer
    task = receive(requests)
    if task is None:
        return
    extract, settings, cpu_seconds, memory = pickle.loads(task)
    # Loads what is loaded at first use: no page is to pay for it, nor be blamed.
    extract(RawPage("", "text/html", b"<p>A first page.", "", None), settings)
    _limit_memory(memory)
    without_pages = read_peak_memory()
    send(answers, str(without_pages).encode())
    while (message := receive(requests)) is not None:
        pages = pickle.loads(message)
        with mmap.mmap(shared, 0, access=mmap.ACCESS_READ) as bodies:
            at = 0
            for page, length in pages:
                body = bodies[at : at + length]
                at += length
                # Its signal ends the process, wherever it is: no library can hold it up.
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
                try:
                    outcome = extract(dataclasses.replace(page, body=body), settings)
                except MemoryError:
                    os.abort()
                except Exception:  # whatever a library raises costs its page alone
                    if read_peak_memory() - without_pages > FULL * memory:
                        os.abort()  # some say by other exceptions that there is no memory
                    outcome = NotExtracted("crashed")
                signal.setitimer(signal.ITIMER_PROF, 0)
                send(answers, pickle.dumps(outcome))


def read_peak_memory() -> int:
    """The most bytes that this process ever held in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_memory(allowed: int) -> None:
    """Let this process have `allowed` bytes of address space beyond what it has already (Linux)."""
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        return
    used = int(sizes.read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + allowed, used + allowed))


if __name__ == "__main__":
    main(int(sys.argv[1]))
