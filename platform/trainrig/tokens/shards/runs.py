"""Where the tokens and documents of a source lie, shard by shard."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainrig.tokens.permutation import Integers


@dataclass(frozen=True)
class DocumentRuns:
    """The runs of one source: its documents of each shard, in a row. All lists: [runs]."""

    shards: list[int] = field(default_factory=list)
    first_tokens: list[int] = field(default_factory=list)  # in the shard
    first_documents: list[int] = field(default_factory=list)
    token_ends: list[int] = field(default_factory=list)  # in the source
    document_ends: list[int] = field(default_factory=list)

    def add(self, shard: int, token: int, document: int, tokens: int, documents: int) -> None:
        """Add the run that begins at `token` and `document` of a shard."""
        self.shards.append(shard)
        self.first_tokens.append(token)
        self.first_documents.append(document)
        self.token_ends.append((self.token_ends[-1] if self.token_ends else 0) + tokens)
        self.document_ends.append((self.document_ends[-1] if self.document_ends else 0) + documents)

    def count_tokens_before(self, run: int) -> int:
        """Tokens of the source before this run."""
        return self.token_ends[run - 1] if run else 0

    def count_documents_before(self, run: int) -> int:
        """Documents of the source before this run."""
        return self.document_ends[run - 1] if run else 0


def spread(ends: list[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """What of each run lies in `start` up to `end`: (run, from, up to), counted in the run."""
    run = bisect.bisect_right(ends, start)
    while start < end:
        before = ends[run - 1] if run else 0
        past = min(end, ends[run])
        yield run, start - before, past - before
        start, run = past, run + 1


def group_by_run(ends: list[int], places: Integers) -> Iterator[tuple[int, Any]]:
    """The runs that `places` lie in, each with an index of those; none for one past the last."""
    if not places.size:
        return
    first = bisect.bisect_right(ends, int(places.min()))
    if first < len(ends) and places.max() < ends[first]:  # all in one, as they mostly are
        yield first, slice(None)
        return
    runs = np.searchsorted(np.array(ends, dtype=np.int64), places, side="right")
    for run in np.unique(runs[runs < len(ends)]).tolist():
        yield run, runs == run


def build_runs(shards: Sequence[Iterable[tuple[str, int, int]]]) -> dict[str, DocumentRuns]:
    """The runs of each source, in alphabetical order, from the (source, documents, tokens) of
    each shard in turn."""
    found: dict[str, DocumentRuns] = {}
    for number, shard in enumerate(shards):
        token, document = 0, 0
        for source, documents, tokens in shard:
            found.setdefault(source, DocumentRuns()).add(number, token, document, tokens, documents)
            token, document = token + tokens, document + documents
    return dict(sorted(found.items()))
