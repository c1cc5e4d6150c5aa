"""Runs all passes of a search for duplicates in order."""

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
from trainrig.corpus.dedup.passes.repeats import write_equal_keys, write_repeats
from trainrig.corpus.dedup.passes.verification import fetch_remote, verify, write_edges
from trainrig.splits import Phase, Split, Work, sum_counts

Do = Callable[[str, Callable[[], Work], Sequence[Split]], Phase]
"""Does a pass over tasks, those at least that have left no record; by its name."""

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
    """What a search left, beside the files of its last pass."""

    by_split: dict[int, dict[str, int]]  # documents by fate; of earlier split indexes: revoked
    candidates: int  # pairs that were compared
    evidence: int  # of them, those kept: from the floor of evidence up
    verified: int  # of those, the ones alike enough for one of the two to fall
    clusters: int  # of documents that such pairs, or equal texts, hang together by


def list_steps(urls: bool) -> list[str]:
    """The passes in their order; the rounds of the decision are one."""
    return [name for name in _STEPS if urls or not name.startswith("url-")]


def find_step_number(name: str, urls: bool) -> int:
    """Which of `list_steps` the pass of this name is, from 1."""
    return list_steps(urls).index(name.rstrip("-0123456789")) + 1


def find_duplicates(search: DuplicateSearch, do: Do, pairs_known: bool = False) -> DuplicatesFound:
    """Decide which documents are copies; the pairs may be known from before.

    Then what comparing them came to (`candidates`, `evidence`) is not: 0.
    """

    def run(name: str, make: Callable[..., Work], tasks: Iterable[int], *more: Any) -> Any:
        splits = [Split(f"{number:05d}", {"number": number}) for number in tasks]
        phase = do(name, functools.partial(make, search, *more), splits)
        return sum_counts(record.counts for record in phase.read_results(splits))

    partitions, parts = search.partitions, search.parts
    for kind in ("url", "text") if search.urls else ("text",):
        run(f"{kind}-keys", write_equal_keys, partitions, kind)
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
