"""Where the tokens and documents of a source lie: one run of each shard that has any."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainrig.tokens.permutation import Integers


@dataclass(frozen=True)
class DocumentRuns:
    """The runs of one source; a run is its adjacent documents in one shard. All lists: [runs]."""

    shards: list[int] = field(default_factory=list)  # index of the shard
    # First token and first document of each run, counted from the start of the shard.
    first_tokens: list[int] = field(default_factory=list)
    first_documents: list[int] = field(default_factory=list)
    # End (exclusive) of each run in tokens and documents, counted from the start of the source.
    token_ends: list[int] = field(default_factory=list)
    document_ends: list[int] = field(default_factory=list)

    def add(self, shard: int, token: int, document: int, tokens: int, documents: int) -> None:
        """Append the run that begins at `token` and `document` of a shard.

        `tokens` and `documents` are the lengths of the run.
        """
        self.shards.append(shard)
        self.first_tokens.append(token)
        self.first_documents.append(document)
        self.token_ends.append((self.token_ends[-1] if self.token_ends else 0) + tokens)
        self.document_ends.append((self.document_ends[-1] if self.document_ends else 0) + documents)

    def count_tokens_before(self, run: int) -> int:
        """Return the number of tokens of the source before this run."""
        return self.token_ends[run - 1] if run else 0

    def count_documents_before(self, run: int) -> int:
        """Return the number of documents of the source before this run."""
        return self.document_ends[run - 1] if run else 0


def split_by_run(ends: list[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the part of each run that lies in `start` to `end`: (run, begin, end within the run).

    `ends` are the cumulative ends of the runs, in the unit of `start` and `end`.
    """
    run = bisect.bisect_right(ends, start)
    while start < end:
        before = ends[run - 1] if run else 0
        past = min(end, ends[run])
        yield run, start - before, past - before
        start = past
        run = run + 1


def group_by_run(ends: list[int], places: Integers) -> Iterator[tuple[int, Any]]:
    """Yield each run that `places` fall into, with a numpy index that selects those places.

    `ends` are the cumulative ends of the runs. A place at or beyond the last end is left out.
    """
    if not places.size:
        return
    first = bisect.bisect_right(ends, int(places.min()))
    if first < len(ends) and places.max() < ends[first]:  # the common case: all in one run
        yield first, slice(None)
        return
    runs = np.searchsorted(np.array(ends, dtype=np.int64), places, side="right")
    for run in np.unique(runs[runs < len(ends)]).tolist():
        yield run, runs == run


def build_runs(shards: Sequence[Iterable[tuple[str, int, int]]]) -> dict[str, DocumentRuns]:
    """Return the runs of each source, keyed by source in alphabetical order.

    `shards` holds, for each shard, its runs as (source, documents, tokens) in file order.
    """
    found: dict[str, DocumentRuns] = {}
    for number, shard in enumerate(shards):
        token = 0
        document = 0
        for source, documents, tokens in shard:
            found.setdefault(source, DocumentRuns()).add(number, token, document, tokens, documents)
            token = token + tokens
            document = document + documents
    return dict(sorted(found.items()))
