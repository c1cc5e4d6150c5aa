"""Reader of the rows of a best-fit plan.

Each token is a target once an epoch, except the first token of a document that begins a row. There
is no target where padding follows, nor where the next id begins a continuing piece of a document.

Shapes: T positions of a row, B rows of a call, P pieces of documents in one row.
"""

import numpy as np

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.packing.best_fit_plan import ARRAYS, name_plan
from trainrig.tokens.packing.layout import check_windows
from trainrig.tokens.packing.plan_files import HEAD, PLANS, PackingPlanFiles
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards


class BestFitRows:
    """Rows of whole documents, padded; only documents longer than a row are cut."""

    def __init__(self, shards: TokenShards, sequence_length: int, cache: BlockCache | None) -> None:
        """Open the plan; raise ConfigError if there is none, DataError if it does not fit."""
        self._shards = shards
        self._length = sequence_length
        remedy = _suggest_remedy(shards.folder, sequence_length)
        self._plan = PackingPlanFiles(shards, name_plan(sequence_length), ARRAYS, cache, remedy)
        self._padding = self._plan.head.settings["padding"]
        self.fingerprint = self._plan.fingerprint

    def windows(self, source: str) -> int:
        """Return the number of rows of the plan for `source`."""
        return self._plan.count("row_ends", source)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets of each row, from the plan.

        Raises ConfigError for a `span` above 1, DataError for numbers that a row cannot have.
        """
        self._check_span(span)
        targets = self._plan.take("row_targets", source, windows).astype(np.int64)
        if targets.size and not 0 <= targets.min() <= targets.max() <= self._length:
            found = f"rows of {targets.min()} to {targets.max()} targets, of {self._length}"
            raise self._plan.make_impossible_error("row_targets", found)
        return targets

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row piece by piece, as `Layout.read` says.

        Raises ConfigError for a `span` above 1, DataError for pieces that a row cannot have.
        """
        self._check_span(span)
        check_windows(source, window, span, self.windows(source))
        starts, lengths = self._read_pieces(source, window)
        row = np.full(self._length + 1, self._padding, dtype=np.int64)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        for begin, end, start in zip(begins, ends, starts, strict=True):
            self._shards.read_into(source, int(start), row[begin:end])
        numbers = self._shards.find_document_numbers(source, starts)
        continues = self._shards.find_document_starts(source, numbers) < starts
        ids[:] = row[:-1]
        targets[:] = row[1:]
        targets[ends[-1] - 1 :] = IGNORE
        targets[begins[1:][continues[1:]] - 1] = IGNORE
        return np.stack([begins, numbers], axis=1)[begins < self._length]

    def _read_pieces(self, source: str, window: int) -> tuple[Integers, Integers]:
        """Return the [P] start in the source and the [P] length of each of the row's pieces."""
        known = max(window - 1, 0)  # the pieces of row 0 begin at piece 0, which is not stored
        row_ends = self._plan.read("row_ends", source, known, window + 1)
        begin = 0 if window == 0 else int(row_ends[0])
        end = int(row_ends[-1])
        count = self._plan.count("starts", source)
        if not 0 <= begin < end <= count:
            found = f"{source}: row {window} of pieces {begin} to {end}, of {count}"
            raise self._plan.make_impossible_error("row_ends", found)
        starts = self._plan.read("starts", source, begin, end)
        lengths = self._plan.read("lengths", source, begin, end).astype(np.int64)
        if lengths.min() < 1 or lengths.sum() > self._length + 1:
            found = f"{source}: row {window} of {lengths.sum()} ids, of {self._length + 1}"
            raise self._plan.make_impossible_error("lengths", found)
        tokens = self._shards.tokens(source)
        if starts.min() < 0 or (starts > tokens - lengths).any():
            found = f"{source}: row {window} begins at ids {starts.min()} to {starts.max()}"
            raise self._plan.make_impossible_error("starts", f"{found}, of {tokens}")
        return starts, lengths

    def _check_span(self, span: int) -> None:
        if span != 1:
            raise ConfigError(
                f"packing: BestFit has rows of one length ({self._length}), but a row of "
                f"{span * self._length} is needed; use one sequence_length, or Concatenate"
            )


def _suggest_remedy(folder: str, sequence_length: int) -> str:
    prefix = storage.join(folder, PLANS, name_plan(0))[:-1]
    suffix = HEAD
    there = [
        path.removeprefix(prefix).removesuffix(suffix)
        for path in storage.list_files(storage.join(folder, PLANS), suffix)
        if path.startswith(prefix)
    ]
    planned = f"there are plans for {', '.join(sorted(there, key=int))}; " if there else ""
    return (
        f"{planned}tokenize with {sequence_length} in `best_fit` under `[plans]`, or use the "
        f"packing Concatenate"
    )
