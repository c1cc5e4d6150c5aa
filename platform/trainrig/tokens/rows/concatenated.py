"""Rows cut from concatenated documents, in the order of the shards or of a shuffle plan.

Row w of T positions takes T + 1 ids from id w * T on, so the last id of a row is the first of the
next row. Each token is a target once an epoch, except the source's first token and its last
(tokens - 1) mod T tokens.

A shuffle plan is made once, when documents are tokenized.

The plan has two arrays with one entry for each place of the shuffled order, together 16 bytes: the
end of the document at that place in the shuffled stream of its source, and its start in the source.

Shapes: T positions of a base window, B rows of a call, P pieces of documents in one row.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.manifest import FileSum
from trainrig.tokens.permutation import Integers, permute_indices
from trainrig.tokens.rows import plan_files
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards

NAME = "shuffle"
ARRAYS: plan_files.Arrays = {
    "ends": np.dtype("<i8"),  # position in the shuffled stream
    "starts": np.dtype("<i8"),  # position in the source
}
CHUNK = 2**18  # documents processed at a time: 2 MiB of each array


def write_shuffle_plan(shards: TokenShards, seed: int) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Shuffle the documents of each source; return counts, and the sums of the plan's files.

    Document i goes to the place that a permutation of `seed`, the source's name and its number of
    documents assigns. Documents are numbered in the order of the shards.
    """

    def fill(paths: Mapping[str, Path]) -> plan_files.Entries:
        counts = {source: shards.count_documents(source) for source in shards.sources}
        maps = {
            array: np.memmap(paths[array], dtype, "w+", shape=(sum(counts.values()),))
            for array, dtype in ARRAYS.items()
        }
        first = 0
        for source, count in counts.items():
            own = slice(first, first + count)
            _shuffle(shards, source, seed, maps["ends"][own], maps["starts"][own])
            first += count
        for written in maps.values():
            written.flush()
        return {source: dict.fromkeys(ARRAYS, count) for source, count in counts.items()}

    files = plan_files.write_plan(shards, NAME, {"seed": seed}, ARRAYS, fill)
    documents = sum(shards.count_documents(source) for source in shards.sources)
    return {"documents": documents, "bytes": sum(entry.bytes for entry in files.values())}, files


def _shuffle(shards: TokenShards, source: str, seed: int, ends: Integers, starts: Integers) -> None:
    """Fill the entries of one source.

    Shards are read sequentially, because they may be in a bucket. The plan is written in random
    order, because it is a local file until it is complete.
    """
    count = len(ends)
    for begin in range(0, count, CHUNK):
        past = min(count, begin + CHUNK)
        places = permute_indices(np.arange(begin, past), count, f"documents\n{seed}\n{source}")
        bounds = shards.find_document_starts(source, np.arange(begin, past + 1))
        starts[places] = bounds[:-1]
        ends[places] = np.diff(bounds)  # lengths; the next loop replaces them by ends
    total = 0
    for begin in range(0, count, CHUNK):
        chunk = ends[begin : begin + CHUNK]
        chunk[:] = total + np.cumsum(chunk)
        total = int(chunk[-1])


REMEDY = (
    "tokenize with `shuffle_documents = true` under `[plans]`, or leave `shuffle_documents` out "
    "of this run's packing"
)


class Concatenated:
    """Rows of documents in the order of the shards; they need no plan."""

    fingerprint = ""

    def __init__(self, shards: TokenShards, sequence_length: int) -> None:
        self._shards = shards
        self._length = sequence_length

    def windows(self, source: str) -> int:
        """Return the number of full rows of `source`, each with the id after its last position."""
        return max(0, (self._shards.tokens(source) - 1) // self._length)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets of each row, which is all its positions."""
        return np.full(len(windows), span * self._length, dtype=np.int64)

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row from the shards, as `Layout.read` says."""
        plan_files.check_windows(source, window, span, self.windows(source))
        start = window * self._length
        count = span * self._length
        self._shards.read_into(source, start, ids)
        targets[:-1] = ids[1:]
        self._shards.read_into(source, start + count, targets[-1:])
        places = np.append(0, self._shards.find_boundaries(source, start, count) - start)
        first = self._shards.find_document_numbers(source, np.array([start]))[0]
        return np.stack([places, first + np.arange(len(places))], axis=1)

    def find_windows(self, source: str, numbers: Integers) -> Integers:
        """Return the windows that hold the documents, as `MaskableLayout.find_windows` says."""
        bounds = self._shards.find_document_starts(source, np.stack([numbers, numbers + 1]))
        return self._list_windows(source, numbers, bounds[0], bounds[1])

    def find_last_target(self, source: str, window: int, span: int) -> int:
        """Return the number of the document of a row's last target."""
        last = np.array([(window + span) * self._length])
        return int(self._shards.find_document_numbers(source, last)[0])

    def _list_windows(
        self, source: str, numbers: Integers, begins: Integers, ends: Integers
    ) -> Integers:
        """Return [N, 2] the windows of documents that begin and end at these ids of the stream."""
        # Id t is in window t // T, and the target of a position of window (t - 1) // T.
        firsts = np.maximum(begins - 1, 0) // self._length
        lasts = np.minimum((ends - 1) // self._length, self.windows(source) - 1)
        found = [
            (window, number)
            for number, first, last in zip(
                numbers.tolist(), firsts.tolist(), lasts.tolist(), strict=True
            )
            for window in range(first, last + 1)
        ]
        return np.array(sorted(set(found)), dtype=np.int64).reshape(-1, 2)


class Shuffled(Concatenated):
    """Rows of documents in the order of the shuffle plan.

    A row is found by bisection and read piece by piece. Its cost hardly grows with the number of
    documents.
    """

    def __init__(self, shards: TokenShards, sequence_length: int, cache: BlockCache | None) -> None:
        """Open the plan; raise ConfigError if there is none, DataError if it does not fit."""
        super().__init__(shards, sequence_length)
        self._plan = plan_files.PackingPlanFiles(shards, NAME, ARRAYS, cache, REMEDY)
        self.fingerprint = self._plan.fingerprint

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row from the documents that the plan puts there, as `Layout.read` says.

        Raises DataError for values that a plan of these shards cannot have.
        """
        plan_files.check_windows(source, window, span, self.windows(source))
        count = span * self._length
        start = window * self._length  # position in the shuffled stream
        row = np.empty(count + 1, dtype=np.int64)
        bounds, starts = self._read_documents(source, start, start + len(row))
        begins = np.maximum(bounds[:-1], start)
        ends = np.minimum(bounds[1:], start + len(row))
        offsets = starts + begins - bounds[:-1]
        for begin, end, offset in zip(begins - start, ends - start, offsets, strict=True):
            self._shards.read_into(source, int(offset), row[begin:end])
        ids[:] = row[:-1]
        targets[:] = row[1:]
        shown = begins < start + count  # the last piece may have nothing but the last target
        numbers = self._shards.find_document_numbers(source, starts[shown])
        return np.stack([begins[shown] - start, numbers], axis=1)

    def find_windows(self, source: str, numbers: Integers) -> Integers:
        """Return the windows that hold the documents, as `MaskableLayout.find_windows` says.

        Raises DataError if the plan has other documents at their places.
        """
        count = self._plan.count("ends", source)
        key = f"documents\n{self._plan.head.settings['seed']}\n{source}"
        places = permute_indices(numbers, count, key)
        ends = self._plan.take("ends", source, places)
        before = self._plan.take("ends", source, np.maximum(places - 1, 0))
        starts = self._shards.find_document_starts(source, numbers)
        if (self._plan.take("starts", source, places) != starts).any():
            found = f"{source}: documents at other places than the seed puts them"
            raise self._plan.make_impossible_error("starts", found)
        return self._list_windows(source, numbers, np.where(places > 0, before, 0), ends)

    def find_last_target(self, source: str, window: int, span: int) -> int:
        """Return the number of the document of a row's last target."""
        last = (window + span) * self._length
        _, starts = self._read_documents(source, last, last + 1)
        return int(self._shards.find_document_numbers(source, starts[:1])[0])

    def _read_documents(self, source: str, start: int, end: int) -> tuple[Integers, Integers]:
        """Return where D documents of the shuffled stream begin: (bounds, starts).

        These are the documents of tokens `start` to `end` of the stream. `bounds` is [D + 1]: where
        each begins in the stream, and where the last ends. `starts` is [D], in the source.
        """
        first, last = self._plan.search("ends", source, np.array([start, end - 1])).tolist()
        documents = self._plan.count("ends", source)
        tokens = self._shards.tokens(source)
        if not first <= last < documents:
            found = f"{source}: tokens {start} to {end} in documents {first} to {last}"
            raise self._plan.make_impossible_error("ends", f"{found}, of {documents}")
        bounds = np.zeros(last + 2 - first, dtype=np.int64)
        known = max(first - 1, 0)  # document 0 begins at 0, which is not stored
        bounds[known + 1 - first :] = self._plan.read("ends", source, known, last + 1)
        if bounds[0] < 0 or bounds[-1] > tokens or (bounds[1:] <= bounds[:-1]).any():
            found = (
                f"{source}: documents {first} to {last} end at tokens {bounds[1]} to {bounds[-1]}"
            )
            raise self._plan.make_impossible_error("ends", f"{found}, of {tokens}, or descend")
        starts = self._plan.read("starts", source, first, last + 1)
        if starts.min() < 0 or (starts > tokens - np.diff(bounds)).any():
            found = f"{source}: documents that begin at tokens {starts.min()} to {starts.max()}"
            raise self._plan.make_impossible_error("starts", f"{found}, of {tokens}")
        return bounds, starts
