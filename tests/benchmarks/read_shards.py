"""Measure a reader of token shards, in a process that does nothing else: `… FOLDER`."""

import json
import sys
import time
from pathlib import Path

import numpy as np

from trainrig.tokens.shards.token_shards import TokenShards

WINDOWS = 1_000
LENGTH = 4_097  # ids of a window


def status(key: str) -> int:
    """Return a memory figure of this process in bytes, by the kernel's name for it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def main(folder: str) -> None:
    """Open the shards, read windows at random, and find their documents."""
    before = status("RssAnon")
    began = time.process_time()
    shards = TokenShards.open(folder)
    opened = time.process_time()
    starts = np.random.default_rng(0).integers(0, shards.tokens("web") - LENGTH, WINDOWS)
    ids = np.empty(LENGTH, dtype=np.int64)
    shards.read_into("web", 0, ids)  # pays the cost of a process's first read
    begun = time.process_time()
    for start in starts.tolist():
        shards.read_into("web", start, ids)
    read = time.process_time()
    for start in starts.tolist():
        shards.find_boundaries("web", start, LENGTH)
    found = time.process_time()
    measured = {
        "shards": len(shards._shards),
        "open_cpu_ms": round(1e3 * (opened - began), 2),
        "window_cpu_us": round(1e6 * (read - begun) / WINDOWS, 1),
        "document_cpu_us": round(1e6 * (found - read) / WINDOWS, 1),
        "anonymous_bytes": status("RssAnon"),
        "anonymous_bytes_of_shards": status("RssAnon") - before,
        "page_table_bytes": status("VmPTE"),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1])
