"""Batches of classified texts, and of questions with the text that answers them.

Each row holds one text or pair of texts; a micro-batch is as wide as its longest row. The contents
of a row depend on its number alone, so batches are the same at any number of workers.

Shapes: B rows of a micro-batch, T positions, N rows.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.posttrain.tuning.answer_batches import AnswerBatches, build_pieces, read_document
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.posttrain.tuning.preference_rows import (
    TuningRows,
    choose_held_out,
    holds_out,
    refuse_pretraining,
)
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.batches import (
    ANSWER_ENDS,
    ANSWER_STARTS,
    CLASSES,
    CONTEXT,
    EXAMPLES,
    IDS,
    SEGMENTS,
    TEXTS,
    TOKENS,
    MicroBatch,
)
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.shard_files import CLASSES as CLASS_ARRAY
from trainrig.tokens.shards.shard_files import IN_ANSWER, IN_CONTEXT, SECOND_SEGMENT, RowKind
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards, check_rows
from trainrig.train.held_out_loss import HeldOutSets, hold_nothing_out


@dataclass(frozen=True)
class TextReading:
    """Reader of the texts in a folder of shards as arrays of micro-batches."""

    shards: TokenShards
    kind: RowKind
    longest: int  # Largest number of tokens in a row.
    padding: int

    def read_arrays(self, rows: Sequence[tuple[str, int]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of `rows`, given as pairs of a source and a document number.

        Raises DataError for a text that is longer than a row.
        """
        read = [
            read_document(self.shards, source, number, self.longest, "a text of")
            for source, number in rows
        ]
        shape = len(rows), max(len(ids) for ids, _ in read)
        ids_BT = np.full(shape, self.padding, dtype=np.int64)
        weights_BT = np.zeros(shape, dtype=np.int64)
        for row, (ids, weights) in enumerate(read):
            ids_BT[row, : len(ids)], weights_BT[row, : len(ids)] = ids, weights
        found: dict[str, NDArray[Any]] = {
            IDS: ids_BT,
            SEGMENTS: (weights_BT > 0).astype(np.int64),
            TEXTS: (weights_BT & SECOND_SEGMENT > 0).astype(np.int64),
        }
        if self.kind == "classified":
            labels = [
                self.shards.read_document_values(CLASS_ARRAY, s, np.array([n])) for s, n in rows
            ]
            return found | {CLASSES: np.concatenate(labels)}
        answers_BT = weights_BT & IN_ANSWER > 0
        last_B = np.where(answers_BT.any(1), shape[1] - 1 - answers_BT[:, ::-1].argmax(1), 0)
        return found | {
            CONTEXT: (weights_BT & IN_CONTEXT > 0).astype(np.int64),
            ANSWER_STARTS: answers_BT.argmax(1),  # Position 0 if there is no answer.
            ANSWER_ENDS: last_B,
        }


class TextBatches(AnswerBatches):
    """Batches of texts with their labels or answers; implements `Batches`."""

    def __init__(
        self, shards: TokenShards, kind: RowKind, sizes: ConversationBatching, padding: int
    ) -> None:
        """Open the texts of `shards`; `padding` is the token id that fills rows up.

        Raises ConfigError if the shards hold rows of another kind.
        """
        check_rows(shards, kind)
        self._reading = TextReading(shards, kind, sizes.sequence_length, padding)
        super().__init__(shards, sizes, padding, per_row=1)

    def denominators(self, step: int) -> dict[str, int]:
        """Return the number of rows in the global batch; each row has one target."""
        rows = self.micro_batches(step) * self.settings.micro_batch
        return {TOKENS: rows, EXAMPLES: rows}

    def targets(self, step: int) -> int:
        """Return the number of rows in the global batch of `step`."""
        return self.denominators(step)[TOKENS]

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Return micro-batch `index` of `step`."""
        samples, places, rows = self._choose_samples(step, index)
        numbers = np.array([number for _, number in rows])
        return MicroBatch(
            self._reading.read_arrays(rows), samples, places.sources, build_pieces(numbers)
        )


def open_text_batches(
    folder: str, kind: RowKind, sizes: ConversationBatching, padding: int, cache: BlockCache | None
) -> TextBatches:
    """Open the training batches of a folder that `conversations` wrote."""
    return TextBatches(TokenShards.open(storage.join(folder, TRAIN), cache), kind, sizes, padding)


def open_held_out_texts(
    folder: str, kind: RowKind, length: int, padding: int, rows: int, cache: BlockCache | None
) -> HeldOutSets:
    """Return up to `rows` held-out rows of each source, evenly spaced, one row a batch."""
    shards = TokenShards.open(storage.join(folder, HELD_OUT), cache)
    check_rows(shards, kind)
    reading = TextReading(shards, kind, length, padding)
    return choose_held_out(shards, rows, lambda source, row: reading.read_arrays([(source, row)]))


def find_row_kind(objective: ObjectiveSettings) -> RowKind:
    """Return the kind of rows that an objective of whole texts learns from."""
    match objective.rows:
        case "classified" | "questions" as rows:
            return rows
        case rows:
            raise ValueError(f"{objective.kind} reads {rows}, not whole texts")


def open_texts(run: FineTuning, folder: str, padding: int) -> TuningRows:
    """Open the rows of a run on whole texts in the `folder` that `conversations` wrote.

    Raises ConfigError for settings that do not apply to whole texts.
    """
    refuse_pretraining(run)
    kind = find_row_kind(run.objective)
    length = run.batches.sequence_length
    make = functools.partial(open_text_batches, folder, kind, run.batches, padding, run.cache)
    rows = run.training.held_out.rows
    held_out = functools.partial(
        open_held_out_texts, folder, kind, length, padding, rows, run.cache
    )
    return TuningRows(kind, make, held_out if holds_out(run, folder) else hold_nothing_out)


def read_labels(counts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names that the manifest counts of `conversations` contain."""
    return tuple(counts.get("labels", ()))
