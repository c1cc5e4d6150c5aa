"""The opened index: counts of n-grams, the tokens after a context, and the documents of a text.

The files of the partitions are memory-mapped; those in a bucket are downloaded once to this
machine's cache. A search costs a few reads of each partition, whatever the size of the corpus.
"""

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.attribution import suffix_arrays
from trainrig.attribution.index_stage import (
    DOCUMENTS,
    HEADS,
    IDS,
    PARTITIONS,
    SETS,
    SUFFIXES,
)
from trainrig.attribution.token_sets import (
    TOKENIZER_FILE,
    IndexPartitionPlan,
    TokenSet,
)
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.shards.token_shards import IndexedDocument, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder

Result = TypeVar("Result")
Lengths = NDArray[np.int64]
THREADS = 8  # partitions that are searched at a time: searches wait for the disk


@dataclass(frozen=True)
class Occurrence:
    """A place where an n-gram stands, in a document of one of the index's folders of tokens."""

    token_set: int  # index in `CorpusIndex.sets`
    source: str
    number: int  # number of the document in its source
    begin: int  # first token, counted from the start of the document
    end: int  # past the last token


@dataclass(frozen=True)
class NextTokens:
    """The ids that follow a context in the corpus, with their counts: the ∞-gram distribution."""

    context: int  # ids at the end of the context that were found and used
    ids: tuple[int, ...]  # ascending
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of times that the context stands in the corpus with an id after it."""
        return sum(self.counts)

    def compute_probability(self, token: int) -> float:
        """Return the share of `token` among the ids that follow; 0 if it never follows."""
        counts = dict(zip(self.ids, self.counts, strict=True))
        return counts.get(token, 0) / self.total if self.counts else 0.0


@dataclass(frozen=True)
class IndexPartition:
    """A memory-mapped partition."""

    plan: IndexPartitionPlan
    token_set: int
    ids: suffix_arrays.Ids
    suffixes: suffix_arrays.Places
    heads: suffix_arrays.Heads
    begins: Lengths

    @classmethod
    def open(
        cls, folder: str, plan: IndexPartitionPlan, token_set: int, vocabulary: int
    ) -> "IndexPartition":
        """Map the files of the partition `plan` of the index in `folder`."""

        def map_array(ending: str, dtype: Any, length: int) -> NDArray[Any]:
            path = storage.join(folder, PARTITIONS, plan.name + ending)
            local = storage.fetch_local_path(path)
            size = length * np.dtype(dtype).itemsize
            if local.stat().st_size != size:
                raise DataError(
                    f"{path}: {local.stat().st_size} bytes, but its set records {size}; index again"
                )
            return np.memmap(local, dtype, "r", shape=(length,)).view(np.ndarray)

        return cls(
            plan,
            token_set,
            map_array(IDS, suffix_arrays.choose_dtype(vocabulary), plan.tokens),
            map_array(SUFFIXES, "<u4", plan.tokens),
            map_array(HEADS, "<i8", vocabulary + 2),
            map_array(DOCUMENTS, "<i8", plan.documents + 1),
        )

    def find_range(self, query: Lengths) -> tuple[int, int]:
        """Return the first and the past rank of the n-gram `query` in the suffix array."""
        return suffix_arrays.find_range(self.ids, self.suffixes, self.heads, query)

    def locate(self, place: int, length: int) -> Occurrence:
        """Return the document and the tokens in it of the `length` ids from `place` on."""
        document = int(np.searchsorted(self.begins, place, side="right")) - 1
        begin = place - int(self.begins[document])
        for part in self.plan.ranges:
            if document < part.past - part.first:
                number = part.first + document
                return Occurrence(self.token_set, part.source, number, begin, begin + length)
            document -= part.past - part.first
        raise IndexError(f"{self.plan.name}: place {place} is in no document")


class CorpusIndex:
    """An index that `trainrig index` wrote, opened for searches.

    >>> index = trainrig.open_index("quickstart/index")
    >>> index.count(index.encode("the standard library"))
    """

    def __init__(
        self,
        folder: str,
        encoder: Encoder,
        sets: Sequence[TokenSet],
        partitions: Sequence[IndexPartition],
    ) -> None:
        self.folder = folder
        self.encoder = encoder
        self.sets = tuple(sets)
        self._partitions = tuple(partitions)

    @functools.cached_property
    def vocabulary(self) -> int:
        """Number of ids; the separator between documents is the next number."""
        return self.sets[0].vocabulary

    @functools.cached_property
    def unigram_counts(self) -> Lengths:
        """[vocabulary] How often each id stands in the corpus."""
        heads = np.sum([partition.heads for partition in self._partitions], axis=0)
        counts: Lengths = np.diff(heads)[: self.vocabulary]
        return counts

    @property
    def tokens(self) -> int:
        """Number of tokens in the corpus, without separators."""
        return int(self.unigram_counts.sum())

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, by the tokenizer of the corpus."""
        return list(map(int, self.encoder.encode_batch([text])[0]))

    def count(self, ids: Sequence[int]) -> int:
        """Return how often the n-gram `ids` stands in the corpus, within documents.

        Raises ConfigError for an empty n-gram, or an id outside the vocabulary.
        """
        return sum(past - first for first, past in self._find_ranges(self._check(ids)))

    def find(self, ids: Sequence[int], most: int) -> list[Occurrence]:
        """Return up to `most` places where the n-gram `ids` stands, in the order of the index.

        The same index gives the same places. Raises as `count` does.
        """
        query = self._check(ids)
        found: list[Occurrence] = []
        for partition, (first, past) in zip(
            self._partitions, self._find_ranges(query), strict=True
        ):
            places = partition.suffixes[first : min(past, first + most - len(found))]
            found += [partition.locate(int(place), len(query)) for place in np.sort(places)]
            if len(found) == most:
                break
        return found

    def find_match_lengths(self, ids: Sequence[int]) -> Lengths:
        """Return [T] for each id how many ids from it on stand together in one document, at most.

        Raises as `count` does.
        """
        query = self._check(ids)

        def search(partition: IndexPartition) -> Lengths:
            return suffix_arrays.find_match_lengths(
                partition.ids, partition.suffixes, partition.heads, query
            )

        return functools.reduce(np.maximum, self._map(search))

    def predict_next(self, ids: Sequence[int]) -> NextTokens:
        """Return the ids that follow the longest end of the context `ids` that the corpus has.

        The ∞-gram model of Liu et al. 2024 (arXiv:2401.17377). The empty context gives the counts
        of single ids. Raises ConfigError for an id outside the vocabulary.
        """
        query = self._check(ids) if len(ids) else np.empty(0, np.int64)
        low = 0  # the whole context; if a context is found, so are its shorter ends
        high = len(query)
        while low < high:
            middle = (low + high) // 2
            if self._count_next(query[middle:]).any():
                high = middle
            else:
                low = middle + 1
        counts = self._count_next(query[low:])
        found = np.flatnonzero(counts)
        return NextTokens(len(query) - low, tuple(found.tolist()), tuple(counts[found].tolist()))

    def compute_log_probability(self, ids: Sequence[int]) -> float:
        """Return the sum of the logarithms of the shares of single `ids` in the corpus.

        An id that never stands there counts as one that stands once.
        """
        counts = np.maximum(self.unigram_counts[np.asarray(ids, np.int64)], 1)
        return float(np.log(counts).sum() - len(ids) * math.log(self.tokens))

    def open_shards(self, token_set: int) -> TokenShards:
        """Open the shards of one of `sets`. Raises DataError if they are gone or have changed."""
        return self._shards[token_set]

    def read_document(self, found: Occurrence) -> tuple[IndexedDocument, list[int]]:
        """Return the index entry and the ids of a document.

        Raises DataError if the shards are gone, damaged, or others than were indexed.
        """
        shards = self._shards[found.token_set]
        numbers = np.array([found.number, found.number + 1])
        begin, end = shards.find_document_starts(found.source, numbers).tolist()
        ids = shards.read_window(found.source, begin, end - begin).tolist()
        return shards.document(found.source, found.number), ids

    def find_position(self, found: Occurrence) -> int:
        """Return the position of the first token of an occurrence among its source's tokens."""
        shards = self._shards[found.token_set]
        start = shards.find_document_starts(found.source, np.array([found.number]))[0]
        return int(start) + found.begin

    @functools.cached_property
    def _shards(self) -> tuple[TokenShards, ...]:
        return tuple(described.open_shards(self.folder) for described in self.sets)

    def _check(self, ids: Sequence[int]) -> Lengths:
        query = np.asarray(ids, np.int64)
        if not len(query):
            raise ConfigError("an empty text has no tokens to look for; give some text")
        if query.min() < 0 or query.max() >= self.vocabulary:
            wrong = query[(query < 0) | (query >= self.vocabulary)][0]
            raise ConfigError(
                f"{self.folder}: its vocabulary has {self.vocabulary} entries, and {wrong} is none "
                "of them; encode the text with the tokenizer of the index"
            )
        return query

    def _find_ranges(self, query: Lengths) -> list[tuple[int, int]]:
        return self._map(lambda partition: partition.find_range(query))

    def _count_next(self, query: Lengths) -> Lengths:
        """Return [vocabulary] how often each id follows `query`."""
        if not len(query):
            return self.unigram_counts
        counts = np.zeros(self.vocabulary + 1, np.int64)
        for partition, (first, past) in zip(
            self._partitions, self._find_ranges(query), strict=True
        ):
            suffix_arrays.count_next(
                partition.ids, partition.suffixes, first, past, len(query), counts
            )
        return counts[: self.vocabulary]

    def _map(self, search: Callable[[IndexPartition], Result]) -> list[Result]:
        if len(self._partitions) < 2:
            return [search(partition) for partition in self._partitions]
        threads = min(THREADS, len(self._partitions), 2 * (os.cpu_count() or 1))
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(search, self._partitions))


def open_index(folder: str | os.PathLike[str], verify: bool = False) -> CorpusIndex:
    """Open the index that `trainrig index` wrote in `folder`, on disk or in a bucket.

    `verify` reads all files of the index and of its token shards, and compares their SHA-256.
    Raises DataError if the index is unfinished, damaged or of another format.

    >>> index = trainrig.open_index("quickstart/index")
    >>> index.predict_next(index.encode("import")).total
    """
    path = storage.make_absolute(os.fspath(folder).rstrip("/"))
    made = manifest.read_input(path, "index")
    if verify:
        manifest.verify_files(path, made)
    text = manifest.read_file(path, TOKENIZER_FILE).decode()
    encoder = Encoder(text, storage.join(path, TOKENIZER_FILE))
    names = sorted(name for name in made.files if name.startswith(f"{SETS}/"))
    sets = [TokenSet.read(storage.join(path, name)) for name in names]
    if verify:
        _verify_tokens(path, sets)
    partitions = [
        IndexPartition.open(path, plan, number, described.vocabulary)
        for number, described in enumerate(sets)
        for plan in described.partitions
    ]
    return CorpusIndex(path, encoder, sets, partitions)


def _verify_tokens(index: str, sets: Iterable[TokenSet]) -> None:
    """Raise DataError if a file of the indexed shards differs from its sum in their manifest."""
    for described in sets:
        described.open_shards(index)
        folder = described.find_folder(index)
        manifest.verify_files(folder, manifest.read_manifest(folder))
