"""Rows cut from concatenated documents, in the order of the shards or of a shuffle plan.

Row w of T positions takes T + 1 ids from id w * T on, so the last id of a row is the first of the
next row. Each token is a target once an epoch, except the source's first token and its last
(tokens - 1) mod T tokens.

Shapes: T positions of a base window, B rows of a call, P pieces of documents in one row.
"""

import numpy as np

from trainrig.tokens.packing.layout import check_windows
from trainrig.tokens.packing.plan_files import PackingPlanFiles
from trainrig.tokens.packing.shuffle_plan import ARRAYS, NAME
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards

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
        check_windows(source, window, span, self.windows(source))
        start = window * self._length
        count = span * self._length
        self._shards.read_into(source, start, ids)
        targets[:-1] = ids[1:]
        self._shards.read_into(source, start + count, targets[-1:])
        places = np.append(0, self._shards.find_boundaries(source, start, count) - start)
        first = self._shards.find_document_numbers(source, np.array([start]))[0]
        return np.stack([places, first + np.arange(len(places))], axis=1)


class Shuffled(Concatenated):
    """Rows of documents in the order of the shuffle plan.

    A row is found by bisection and read piece by piece. Its cost hardly grows with the number of
    documents.
    """

    def __init__(self, shards: TokenShards, sequence_length: int, cache: BlockCache | None) -> None:
        """Open the plan; raise ConfigError if there is none, DataError if it does not fit."""
        super().__init__(shards, sequence_length)
        self._plan = PackingPlanFiles(shards, NAME, ARRAYS, cache, REMEDY)
        self.fingerprint = self._plan.fingerprint

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row from the documents that the plan puts there, as `Layout.read` says.

        Raises DataError for values that a plan of these shards cannot have.
        """
        check_windows(source, window, span, self.windows(source))
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
