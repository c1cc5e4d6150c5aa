"""Searches among many documents, of generated signatures: what they find, what they take."""

import functools
import json
import os
import pickle
import platform
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig import storage
from trainrig.corpus.dedup.documents import KEPT, Fates
from trainrig.corpus.dedup.keep import Longest
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.corpus.dedup.passes import Search
from trainrig.corpus.dedup.plan import MIB, plan
from trainrig.corpus.dedup.verify import Verification

_planted = runpy.run_path(str(Path(__file__).parent / "planted.py"))
SETTINGS = MinHash()

SEARCH = """
import json, pickle, re, runpy, sys, time
from pathlib import Path
folder, search = Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes())
searching = runpy.run_path(sys.argv[3])
from trainrig.corpus.dedup.search import find_copies
do, seconds = searching["in_process"](folder), {}
def timed(name, make, tasks):
    began = time.process_time()
    phase = do(name, make, tasks)
    seconds[name] = round(time.process_time() - began, 2)
    return phase
began = time.process_time()
found = find_copies(search, timed)
# Of this program alone: what getrusage tells begins with the process that started it.
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps({
    "cpu_seconds": round(time.process_time() - began, 2),
    "peak_bytes": int(peak[1]) * 1024,
    "candidates": found.candidates,
    "evidence": found.evidence,
    "verified": found.verified,
    "seconds": seconds,
}))
"""


def searched(folder: Path, documents: int, splits: int, memory: int) -> dict[str, Any]:
    """What a search takes and finds, in a process of its own; `memory` in bytes."""
    planted = _planted["plant"](folder, documents, SETTINGS, splits)
    cut = plan(planted.shelves, SETTINGS.bands, memory)
    place = functools.partial(storage.join, str(folder))
    search = Search(tuple(planted.shelves), cut, SETTINGS, Verification(), Longest(), False, place)
    (folder / "search").write_bytes(pickle.dumps(search))
    command = [str(folder), str(folder / "search"), str(Path(__file__).parent / "searching.py")]
    told = subprocess.run(
        [sys.executable, "-c", SEARCH, *command],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    paths = [place("settled", f"{shelf.name}.npz") for shelf in planted.shelves]
    fell = np.concatenate([Fates.load(path).kinds != KEPT for path in paths])
    both = int((fell & planted.falls).sum())
    return {
        "documents": documents,
        "tasks": [len(cut.stretches), cut.parts],
        "estimated_bytes": cut.bytes,
        **json.loads(told),
        "fell": int(fell.sum()),
        "precision": both / int(fell.sum()),
        "recall": both / int(planted.falls.sum()),
    }


def check(found: dict[str, Any]) -> None:
    assert found["precision"] == 1
    assert found["recall"] > 0.9999  # who is alike to one that fell, and misses the kept, may stay
    assert found["peak_bytes"] < found["estimated_bytes"]


def test_a_million_documents_take_the_memory_that_was_said(tmp_path: Path) -> None:
    found = searched(tmp_path, 1_000_000, splits=20, memory=1024 * MIB)
    print(json.dumps(found))
    assert min(found["tasks"]) > 1
    check(found)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_ten_times_the_documents_take_at_most_eleven_times_the_time(
    tmp_path: Path, write_result: Callable[[str, dict[str, Any]], None]
) -> None:
    found = []
    for documents, splits in ((1_000_000, 20), (10_000_000, 200)):
        folder = tmp_path / str(documents)
        found.append(searched(folder, documents, splits, memory=1024 * MIB))
        shutil.rmtree(folder)
    growth = found[1]["cpu_seconds"] / found[0]["cpu_seconds"]
    result = {"machine": platform.machine(), "growth": round(growth, 2), "searches": found}
    write_result("scale.json", result)
    for each in found:
        check(each)
    assert growth <= 11
