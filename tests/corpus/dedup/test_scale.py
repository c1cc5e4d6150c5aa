"""Searches among many generated signatures: accuracy, time and memory."""

import functools
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import injected

from trainrig import storage
from trainrig.corpus.dedup.candidates import MOST_CANDIDATES
from trainrig.corpus.dedup.dedup_decisions import KEPT, DedupDecisions
from trainrig.corpus.dedup.document_refs import SplitIndex
from trainrig.corpus.dedup.duplicate_search import MIB, DuplicateSearch, plan_partitions
from trainrig.corpus.dedup.keep_rules import Longest
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.shingle_similarity import Verification

SETTINGS = MinHash()

SEARCH = """
import json, pickle, re, sys, time
from pathlib import Path
folder, search = Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes())
from support.searching import in_process
from trainrig.corpus.dedup.search_passes import find_duplicates
do, seconds = in_process(folder), {}
def timed(name, make, tasks):
    began = time.process_time()
    phase = do(name, make, tasks)
    seconds[name] = round(time.process_time() - began, 2)
    return phase
began = time.process_time()
found = find_duplicates(search, timed)
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


def run_search(
    folder: Path, split_indexes: Sequence[SplitIndex], memory: int
) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """Search in a separate process with `memory` bytes; return its cost and the removals."""
    cut = plan_partitions(split_indexes, SETTINGS.bands, memory)
    place = functools.partial(storage.join, str(folder))
    search = DuplicateSearch(
        tuple(split_indexes), cut, SETTINGS, Verification(), Longest(), False, False, place
    )
    (folder / "search").write_bytes(pickle.dumps(search))
    command = [str(folder), str(folder / "search")]
    output = subprocess.run(
        [sys.executable, "-c", SEARCH, *command],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    paths = [place("decided", f"{split_index.name}.npz") for split_index in split_indexes]
    fell = np.concatenate([DedupDecisions.load(path).kinds != KEPT for path in paths])
    found = {
        "documents": len(fell),
        "tasks": [len(cut.partitions), cut.parts],
        "estimated_bytes": cut.bytes,
        **json.loads(output),
        "fell": int(fell.sum()),
    }
    return found, fell


def search_injected(folder: Path, documents: int, splits: int, memory: int) -> dict[str, Any]:
    """Search among `documents` with injected duplicates; return the cost and the accuracy."""
    made = injected.write_documents(folder, documents, SETTINGS, splits)
    found, fell = run_search(folder, made.split_indexes, memory)
    both = int((fell & made.falls).sum())
    return {
        **found,
        "precision": both / int(fell.sum()),
        "recall": both / int(made.falls.sum()),
    }


def check_accuracy(found: dict[str, Any]) -> None:
    assert found["precision"] == 1
    # A document similar to a removed one, but not to the kept one, may stay.
    assert found["recall"] > 0.9999
    assert found["peak_bytes"] < found["estimated_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("documents", "memory"),
    [
        (200_000, 400 * MIB),
        pytest.param(1_000_000, 1024 * MIB, marks=pytest.mark.soak),
    ],
)
def test_many_documents_stay_within_the_estimated_memory(
    tmp_path: Path, documents: int, memory: int
) -> None:
    found = search_injected(tmp_path, documents, splits=20, memory=memory)
    print(json.dumps(found))
    assert min(found["tasks"]) > 1
    check_accuracy(found)


def search_families(
    folder: Path, documents: int, splits: int, families: int, memory: int, copies: bool = False
) -> dict[str, Any]:
    """Search among documents that all belong to a few families, each of which keeps one."""
    split_indexes = injected.write_families(folder, documents, SETTINGS, splits, families, copies)
    found, _ = run_search(folder, split_indexes, memory)
    assert found["peak_bytes"] < found["estimated_bytes"]
    assert found["candidates"] <= MOST_CANDIDATES * documents
    # Documents that share no band key with the first of their family, .69 ** 18 of all, may stay.
    stay = documents - found["fell"]
    assert families <= stay < families + 0.005 * documents
    return {"families": families, "copies": copies, **found}


@pytest.mark.slow
@pytest.mark.parametrize(("splits", "families"), [(20, 1), (40, 1_250)], ids=["one", "many"])
def test_families_larger_than_a_bucket_stay_within_the_estimated_memory(
    tmp_path: Path, splits: int, families: int
) -> None:
    found = search_families(tmp_path, 50_000, splits, families, memory=512 * MIB)
    print(json.dumps(found))
    assert found["tasks"][0] > 1


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_million_documents_of_few_families_stay_within_the_estimated_memory(
    tmp_path: Path, write_result: Callable[[str, dict[str, Any]], None]
) -> None:
    found = []
    for splits, families, copies, memory in (
        (20, 1, True, 1024 * MIB),
        (200, 1, False, 400 * MIB),  # more documents share one key than a task may hold
        (20, 1_000, False, 1024 * MIB),
        (40, 25_000, False, 1024 * MIB),
    ):
        folder = tmp_path / "searched"
        found.append(search_families(folder, 1_000_000, splits, families, memory, copies))
        shutil.rmtree(folder)
    write_result("families.json", {"machine": platform.machine(), "searches": found})


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_ten_times_the_documents_take_at_most_eleven_times_the_time(
    tmp_path: Path, write_result: Callable[[str, dict[str, Any]], None]
) -> None:
    found = []
    # The durations of short searches vary by a third, and the machine's pace varies over minutes.
    # So half of the short searches run after the long ones.
    short = [(1_000_000, 20)] * 2
    long = [(10_000_000, 200)]
    for documents, splits in (*short, *long, *short):
        folder = tmp_path / "searched"
        found.append(search_injected(folder, documents, splits, memory=1024 * MIB))
        shutil.rmtree(folder)
    seconds = [measured["cpu_seconds"] for measured in found]
    growth = seconds.pop(len(short)) / np.median(seconds)
    result = {"machine": platform.machine(), "growth": round(float(growth), 2), "searches": found}
    write_result("scale.json", result)
    for measured in found:
        check_accuracy(measured)
    assert growth <= 11
