"""The search for duplicates: runs all its passes in order."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.corpus.dedup.passes.candidates import (
    find_candidates,
    find_shared_keys,
    write_band_keys,
    write_bands,
)
from trainrig.corpus.dedup.passes.decision_rounds import decide
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch
from trainrig.corpus.dedup.passes.final_decisions import finalise
from trainrig.corpus.dedup.passes.propagation import propagate
from trainrig.corpus.dedup.passes.repeats import write_digests, write_repeats
from trainrig.corpus.dedup.passes.verification import fetch_remote, verify, write_edges
from trainrig.splits import Phase, Split, Work, sum_counts

Do = Callable[[str, Callable[[], Work], Sequence[Split]], Phase]
"""Function that runs the pass of the given name over all tasks that have no record yet."""

_STEPS = (
    "url-keys",
    "url-repeats",
    "text-keys",
    "text-repeats",
    "band-keys",
    "shared-keys",
    "bands",
    "find-candidates",
    "fetch-remote",
    "verify",
    "edges",
    "decide",
    "text-propagate",
    "url-propagate",
    "finalise",
)


@dataclass(frozen=True)
class DuplicatesFound:
    """Counts of a finished search; its decisions are in the files of the last pass."""

    # dropped documents by kind; for earlier split indexes, revoked documents
    by_split: dict[int, dict[str, int]]
    candidates: int  # pairs compared
    evidence: int  # pairs stored, from the evidence floor up
    verified: int  # pairs similar enough for one document to be dropped
    clusters: int  # clusters of documents, connected by such pairs or equal texts


def list_steps(urls: bool) -> list[str]:
    """Return the names of the passes in order; all decision rounds count as one."""
    return [name for name in _STEPS if urls or not name.startswith("url-")]


def find_step_number(name: str, urls: bool) -> int:
    """Return the position, from 1, of the pass `name` in `list_steps`."""
    return list_steps(urls).index(name.rstrip("-0123456789")) + 1


def find_duplicates(search: DuplicateSearch, do: Do, pairs_known: bool = False) -> DuplicatesFound:
    """Run all passes and decide which documents are duplicates.

    With `pairs_known`, pairs of a finished output are reused, and the counts `candidates` and
    `evidence` are 0.
    """

    def run(name: str, make: Callable[..., Work], tasks: Iterable[int], *more: Any) -> Any:
        splits = [Split(f"{number:05d}", {"number": number}) for number in tasks]
        phase = do(name, functools.partial(make, search, *more), splits)
        return sum_counts(record.counts for record in phase.read_results(splits))

    partitions = search.partitions
    parts = search.parts
    for kind in ("url", "text") if search.urls else ("text",):
        run(f"{kind}-keys", write_digests, partitions, kind)
        run(f"{kind}-repeats", write_repeats, parts, kind)
    compared = {"candidates": 0, "evidence": 0}
    if not pairs_known:
        run("band-keys", write_band_keys, partitions)
        run("shared-keys", find_shared_keys, parts)
        run("bands", write_bands, partitions)
        run("find-candidates", find_candidates, parts)
        run("fetch-remote", fetch_remote, partitions)
        compared = run("verify", verify, partitions)
    alike = run("edges", write_edges, partitions)["alike"]
    turn = 0
    while run(f"decide-{turn:05d}", decide, partitions, turn)["unsettled"]:
        turn += 1
    for kind in ("text", "url") if search.urls else ("text",):
        run(f"{kind}-propagate", propagate, partitions, kind, turn)
    settled = run("finalise", finalise, partitions, turn)
    by_split = {int(number): counts for number, counts in settled["by_split"].items()}
    of_pairs = (compared["candidates"], compared["evidence"], alike)
    return DuplicatesFound(by_split, *of_pairs, settled["clusters"])
