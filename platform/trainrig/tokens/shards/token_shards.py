"""Token shards as training reads them: the ids of each source as one array, across all its shards.

A source's tokens are its runs in all shards, concatenated in the order of the shards' names; its
documents likewise, numbered from 0. Opening reads the header of each shard and checks the sizes of
its files. The cost of a read grows with what is read; finding a document takes logarithmic time.
"""

import bisect
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.storage.missing_folders import describe_origin, is_missing
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.shard_files import (
    ENDINGS,
    ENDS,
    FULL_WEIGHT,
    HEAD,
    TOKENS,
    WEIGHTS,
    Ids,
    IndexedDocument,
    RowKind,
    Shard,
    ShardVocabulary,
)
from trainrig.tokens.shards.shard_writer import INDEX_ROW_GROUP, EncodedDocument

__all__ = [
    "HELD_OUT",
    "OPENERS",
    "TRAIN",
    "DocumentRuns",
    "EncodedDocument",
    "IndexedDocument",
    "ShardVocabulary",
    "TokenShards",
    "build_runs",
    "check_rows",
    "group_by_run",
    "split_by_run",
]


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


# The two folders of a tokenized data set.
TRAIN = "train"
HELD_OUT = "held_out"

OPENERS = 16  # threads that open shards: each reads a header, and waits for S3 meanwhile


@dataclass(frozen=True)
class TokenShards:
    """The shards of one folder, with one array of ids for each source; picklable."""

    folder: str
    vocabulary: ShardVocabulary
    _shards: tuple[Shard, ...]
    _runs: Mapping[str, DocumentRuns]

    @classmethod
    def open(cls, folder: str, cache: BlockCache | None = None) -> "TokenShards":
        """Open the shards directly in `folder`; subfolders are ignored.

        `cache` keeps blocks of shards that are in a bucket. Raises DataError if the folder has no
        shard, if a shard is incomplete, or if shards differ in tokenizer or kind of rows.
        """
        sizes = storage.list_sizes(folder)
        paths = _find_shard_paths(folder, sizes)
        with ThreadPoolExecutor(OPENERS) as threads:
            shards = tuple(threads.map(lambda path: Shard.open(path, sizes, cache), paths))
        first = shards[0].head
        for path, shard in zip(paths, shards, strict=True):
            if shard.head.tokenizer != first.tokenizer:
                raise DataError(
                    f"{path}: made with another tokenizer than {paths[0]}; tokenize both with one"
                )
            if shard.head.rows != first.rows:
                raise DataError(
                    f"{path}: holds {shard.head.rows}, but {paths[0]} holds {first.rows}; keep "
                    "them in separate folders"
                )
        return cls(
            folder,
            first.shard_vocabulary,
            shards,
            build_runs([shard.head.runs for shard in shards]),
        )

    @property
    def rows(self) -> RowKind:
        """The kind of documents in the shards, such as plain documents, conversations or pairs."""
        return self._shards[0].head.rows

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources, in alphabetical order."""
        return tuple(self._runs)

    def tokens(self, source: str) -> int:
        """Return the number of tokens of `source`."""
        return self._runs[source].token_ends[-1]

    def count_documents(self, source: str) -> int:
        """Return the number of documents of `source`."""
        return self._runs[source].document_ends[-1]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the tokenizer, the tokens, the ends of documents and the sources.

        It is the same for the same tokens in the same shards, wherever the folder is.
        """
        content: dict[str, Any] = {
            "tokenizer": self.vocabulary.fingerprint,
            "shards": [
                [shard.head.tokens_sha256, shard.head.ends_sha256, shard.head.runs]
                for shard in self._shards
            ],
        }
        if self.rows != "documents":
            content |= {"rows": self.rows, "arrays": [shard.head.arrays for shard in self._shards]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def read_window(self, source: str, start: int, length: int) -> Ids:
        """Return a copy of the ids `start` to `start + length` (exclusive) of `source`.

        Raises IndexError if the window exceeds the source.
        """
        ids = np.empty(max(length, 0), self.vocabulary.dtype)
        self.read_into(source, start, ids)
        return ids

    def read_into(self, source: str, start: int, out: NDArray[np.integer[Any]]) -> None:
        """Fill `out` with the ids of `source` from position `start` on.

        Raises IndexError if the source ends earlier, DataError for an id outside the vocabulary.
        """
        filled = 0
        for shard, begin, end in self._iterate_pieces(source, start, len(out)):
            ids = self._shards[shard].ids.read(begin, end)
            largest = ids.max()
            if largest >= self.vocabulary.size:
                raise DataError(
                    f"{self._shards[shard].path}{TOKENS}: id {largest} in tokens {begin} to {end}, "
                    f"but its vocabulary has {self.vocabulary.size} entries; tokenize again"
                )
            out[filled : filled + end - begin] = ids
            filled += end - begin

    def read_weights(self, source: str, start: int, out: NDArray[np.integer[Any]]) -> None:
        """Fill `out` with the target weights of the ids of `source` from `start` on.

        Weights are in hundredths; in plain documents every id has the full weight of 100. Raises
        IndexError if the source ends earlier.
        """
        if self.rows == "documents":
            out[:] = FULL_WEIGHT
            return
        filled = 0
        for shard, begin, end in self._iterate_pieces(source, start, len(out)):
            out[filled : filled + end - begin] = (
                self._shards[shard].arrays[WEIGHTS].read(begin, end)
            )
            filled += end - begin

    def read_document_values(self, array: str, source: str, numbers: Integers) -> Integers:
        """Return the values of the per-document array `array` for the given documents of `source`.

        `numbers` are the documents' numbers in `source`; the result has their shape.
        """
        runs = self._runs[source]
        _check_inside(numbers, self.count_documents(source), f"{source}: document")
        found = np.empty(numbers.shape, dtype=np.int64)
        for run, here in group_by_run(runs.document_ends, numbers):
            places = numbers[here] - runs.count_documents_before(run) + runs.first_documents[run]
            found[here] = self._shards[runs.shards[run]].arrays[array].take(places)
        return found

    def find_document_starts(self, source: str, numbers: Integers) -> Integers:
        """Return the position in `source` at which each of the documents `numbers` begins.

        A number equal to `count_documents(source)` gives the end of the source. Raises IndexError
        for larger numbers, and DataError if the shards have impossible ends of documents.
        """
        runs = self._runs[source]
        _check_inside(numbers, self.count_documents(source) + 1, f"{source}: document")
        starts = np.full(numbers.shape, self.tokens(source), dtype=np.int64)
        for run, here in group_by_run(runs.document_ends, numbers):
            first = runs.first_documents[run]
            places = numbers[here] - runs.count_documents_before(run) + first
            found = self._shards[runs.shards[run]].ends.take(np.maximum(places - 1, 0))
            # The first document of a run begins where the run begins.
            found = np.where(places > first, found, runs.first_tokens[run])
            self._check_ends(runs, run, places - first, found)
            starts[here] = found - runs.first_tokens[run] + runs.count_tokens_before(run)
        return starts

    def find_document_numbers(self, source: str, positions: Integers) -> Integers:
        """Return the number of the document in `source` that each of the token `positions` is in.

        Raises IndexError for a position outside the source, and DataError if the shards have
        impossible ends of documents.
        """
        runs = self._runs[source]
        _check_inside(positions, self.tokens(source), f"{source}: token")
        numbers = np.empty(positions.shape, dtype=np.int64)
        for run, here in group_by_run(runs.token_ends, positions):
            first = runs.first_documents[run]
            past = first + runs.document_ends[run] - runs.count_documents_before(run)
            places = positions[here] - runs.count_tokens_before(run) + runs.first_tokens[run]
            ends = self._shards[runs.shards[run]].ends
            # A result past the last document means a wrong end, which `_check_ends` reports.
            found = np.minimum(ends.search(places, "right", first, past), past - 1)
            self._check_ends(runs, run, found - first + 1, ends.take(found))
            numbers[here] = found - first + runs.count_documents_before(run)
        return numbers

    def find_boundaries(self, source: str, start: int, length: int) -> Integers:
        """Return the positions between `start` and `start + length` at which a document begins.

        `start` itself is left out. Raises DataError if the shards have impossible document ends.
        """
        self._check_window(source, start, length)
        runs = self._runs[source]
        found: list[Integers] = []
        for run, begin, end in split_by_run(runs.token_ends, start, start + length):
            token = runs.first_tokens[run]
            document = runs.first_documents[run]
            # The shift converts positions in the shard to positions in the source.
            shift = runs.count_tokens_before(run) - token
            ends = self._shards[runs.shards[run]].ends
            inside = np.array([token + begin, token + end - 1], dtype=np.int64)
            past = document + runs.document_ends[run] - runs.count_documents_before(run)
            first, last = ends.search(inside, "right", document, past).tolist()
            here = ends.read(first, max(first, last))
            self._check_ends(runs, run, np.arange(first, first + len(here)) - document + 1, here)
            if found:  # each run begins with a new document
                found.append(np.array([token + begin + shift]))
            found.append(here + shift)
        return np.concatenate(found)

    def read_documents(self, source: str, start: int, length: int) -> list[IndexedDocument]:
        """Return the index entries of the documents in the window `start` to `start + length`."""
        return self._read_index(source, *self._find_numbers(source, start, length))

    def document(self, source: str, number: int) -> IndexedDocument:
        """Return the index entry of the document `number` of `source`, counted from 0."""
        if not 0 <= number < self.count_documents(source):
            raise IndexError(f"{source}: document {number} of {self.count_documents(source)}")
        return self._read_index(source, number, number + 1)[0]

    def iterate_index(self, source: str) -> Iterator[IndexedDocument]:
        """Yield the index entries of all documents of `source`, in order."""
        count = self.count_documents(source)
        for first in range(0, count, INDEX_ROW_GROUP):
            yield from self._read_index(source, first, min(first + INDEX_ROW_GROUP, count))

    def _find_numbers(self, source: str, start: int, length: int) -> tuple[int, int]:
        """Return the number of a window's first document, and of the one after its last."""
        self._check_window(source, start, length)
        ends = np.array([start, start + length - 1], dtype=np.int64)
        first, last = self.find_document_numbers(source, ends).tolist()
        return first, last + 1

    def _read_index(self, source: str, first: int, past: int) -> list[IndexedDocument]:
        runs = self._runs[source]
        found: list[IndexedDocument] = []
        for run, begin, end in split_by_run(runs.document_ends, first, past):
            offset = runs.first_documents[run]
            found += self._shards[runs.shards[run]].read_index(offset + begin, offset + end)
        return found

    def _iterate_pieces(
        self, source: str, start: int, length: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of the window in order: (shard, first id, end) counted in the shard.

        `length` must be at least 1.
        """
        self._check_window(source, start, length)
        runs = self._runs[source]
        for run, begin, end in split_by_run(runs.token_ends, start, start + length):
            offset = runs.first_tokens[run]
            yield runs.shards[run], offset + begin, offset + end

    def _check_ends(
        self, runs: DocumentRuns, run: int, documents: Integers, ends: Integers
    ) -> None:
        """Raise DataError if the first `documents` documents of a run cannot end at `ends`.

        `ends` are token positions in the shard. Every document of a run has at least one token, so
        those before an end and those after it need one each.
        """
        tokens = runs.token_ends[run] - runs.count_tokens_before(run)
        count = runs.document_ends[run] - runs.count_documents_before(run)
        more = ends - runs.first_tokens[run] - documents  # tokens beyond one for each document
        if not more.size:
            return
        wrong = (
            (more < 0) | (more > tokens - count) | ((documents == count) & (more < tokens - count))
        )
        falls = np.diff(more) * np.diff(documents) < 0
        if wrong.any() or falls.any():
            at = int(wrong.argmax()) if wrong.any() else int(falls.argmax()) + 1
            path = self._shards[runs.shards[run]].path + ENDS
            raise DataError(
                f"{path}: a document ends at token {ends[at]}, which is impossible for {count} "
                f"documents with {tokens} tokens; tokenize again"
            )

    def _check_window(self, source: str, start: int, length: int) -> None:
        if not 0 <= start < start + length <= self.tokens(source):
            raise IndexError(
                f"{source}: ids {start} to {start + length} of {self.tokens(source)} tokens"
            )


def _check_inside(places: Integers, count: int, what: str) -> None:
    if places.size and (places.min() < 0 or places.max() >= count):
        raise IndexError(f"{what}s {places.min()} to {places.max()}, of {count}")


def _find_shard_paths(folder: str, files: Iterable[str]) -> list[str]:
    """Return the paths, without suffix, of the shards in `folder`, including incomplete shards.

    `files` are the locations of all files below `folder`.
    """
    ending_of = {path: ending for path in files for ending in ENDINGS if path.endswith(ending)}
    paths = {path.removesuffix(ending) for path, ending in ending_of.items() if ending != HEAD}
    here = {path for path in paths if path.rpartition("/")[0] == folder.rstrip("/")}
    if not here:
        if is_missing(folder):
            raise DataError(f"{folder}: no such folder{describe_origin(folder)}")
        nearby = ", ".join(sorted({path.rpartition("/")[0] for path in paths}))
        remedy = f"there are some in {nearby}" if nearby else "`trainrig tokenize` makes them"
        raise DataError(f"{folder}: no token shards (*{TOKENS}) here; {remedy}")
    # A header without any other file is a shard too: opening it reports what is missing.
    heads = {path.removesuffix(HEAD) for path, ending in ending_of.items() if ending == HEAD}
    return sorted(here | {path for path in heads if path.rpartition("/")[0] == folder.rstrip("/")})


def check_rows(shards: TokenShards, wanted: str) -> None:
    """Raise ConfigError unless the rows of `shards` are of the kind `wanted`."""
    if shards.rows != wanted:
        raise ConfigError(
            f"{shards.folder}: holds {shards.rows}, but the objective is for {wanted}; run "
            f'`trainrig conversations` with rows = "{wanted}"'
        )
