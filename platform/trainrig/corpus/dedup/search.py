"""All passes of a search for copies, one after the other."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.corpus.dedup import passes
from trainrig.corpus.dedup.passes import Search
from trainrig.splits import Phase, Split, Work, total

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
    "meet",
    "carry",
    "verify",
    "edges",
    "decide",
    "text-tell",
    "url-tell",
    "settle",
)


@dataclass(frozen=True)
class Found:
    """What a search left, beside the files of its last pass."""

    by_shelf: dict[int, dict[str, int]]  # documents by fate; of earlier shelves: revoked
    candidates: int  # pairs that were compared
    evidence: int  # of them, those kept: from the floor of evidence up
    verified: int  # of those, the ones alike enough for one of the two to fall
    clusters: int  # of documents that such pairs, or equal texts, hang together by


def steps(urls: bool) -> list[str]:
    """The passes in their order; the rounds of the decision are one."""
    return [name for name in _STEPS if urls or not name.startswith("url-")]


def nth_step(name: str, urls: bool) -> int:
    """Which of `steps` the pass of this name is, from 1."""
    return steps(urls).index(name.rstrip("-0123456789")) + 1


def find_copies(search: Search, do: Do, pairs_known: bool = False) -> Found:
    """Decide which documents are copies; the pairs may be known from before.

    Then what comparing them came to (`candidates`, `evidence`) is not: 0.
    """

    def run(name: str, make: Callable[..., Work], tasks: Iterable[int], *more: Any) -> Any:
        splits = [Split(f"{number:05d}", {"number": number}) for number in tasks]
        phase = do(name, functools.partial(make, search, *more), splits)
        return total(record.counts for record in phase.results(splits))

    stretches, parts = search.stretches, search.parts
    for kind in ("url", "text") if search.urls else ("text",):
        run(f"{kind}-keys", passes.equal_keys, stretches, kind)
        run(f"{kind}-repeats", passes.repeats, parts, kind)
    compared = {"candidates": 0, "evidence": 0}
    if not pairs_known:
        run("band-keys", passes.band_keys, stretches)
        run("shared-keys", passes.shared_keys, parts)
        run("bands", passes.bands, stretches)
        run("meet", passes.meet, parts)
        run("carry", passes.carry, stretches)
        compared = run("verify", passes.verify, stretches)
    alike = run("edges", passes.edges, stretches)["alike"]
    turn = 0
    while run(f"decide-{turn:05d}", passes.decide, stretches, turn)["unsettled"]:
        turn += 1
    for kind in ("text", "url") if search.urls else ("text",):
        run(f"{kind}-tell", passes.tell, stretches, kind, turn)
    settled = run("settle", passes.settle, stretches, turn)
    by_shelf = {int(number): counts for number, counts in settled["by_shelf"].items()}
    of_pairs = (compared["candidates"], compared["evidence"], alike)
    return Found(by_shelf, *of_pairs, settled["clusters"])
