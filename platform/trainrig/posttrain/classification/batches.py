"""The batches of whole texts: classified ones, and questions with the text that answers them.

Each row is one text, or pair of texts, by itself; a micro-batch is as wide as its longest. What a
row is depends on its number alone, so batches are the same at any number of workers.

Shapes: B rows of a micro-batch, T positions, N rows.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.objectives import Classification, OfLabels
from trainrig.posttrain.answer_batches import Answers
from trainrig.posttrain.batches import ConversationBatching
from trainrig.posttrain.preference_rows import TuningRows
from trainrig.posttrain.run_file import FineTuning
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
from trainrig.tokens.mixing.pretraining import PretrainBatches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.shard_files import CLASSES as CLASS_ARRAY
from trainrig.tokens.shards.shard_files import IN_ANSWER, IN_CONTEXT, SECOND_SEGMENT, RowKind
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards, check_rows
from trainrig.train.held_out import HeldOutSets, hold_nothing_out


@dataclass(frozen=True)
class TextReading:
    """The texts of a folder of shards, as the arrays of micro-batches."""

    shards: TokenShards
    kind: RowKind
    longest: int  # tokens of a row
    padding: int

    def read_arrays(self, rows: Sequence[tuple[str, int]]) -> dict[str, NDArray[Any]]:
        """Those of `rows`, sources with numbers of their documents. Raises DataError for a text
        that is longer than a row."""
        read = [self._read(source, number) for source, number in rows]
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
            ANSWER_STARTS: answers_BT.argmax(1),  # 0 where there is none
            ANSWER_ENDS: last_B,
        }

    def _read(self, source: str, number: int) -> tuple[Integers, Integers]:
        begin, end = self.shards.find_document_starts(
            source, np.array([number, number + 1])
        ).tolist()
        if end - begin > self.longest:
            raise DataError(
                f"{self.shards.folder}: {source}: a text of {end - begin} tokens is longer than "
                f"the {self.longest} of a row; raise sequence_length, or run `conversations` with "
                "this one"
            )
        ids, weights = np.empty((2, end - begin), dtype=np.int64)
        self.shards.read_into(source, begin, ids)
        self.shards.read_weights(source, begin, weights)
        return ids, weights


class TextBatches(PretrainBatches):
    """Texts with what is to be said of them, as `Batches`."""

    def __init__(
        self, shards: TokenShards, kind: RowKind, sizes: ConversationBatching, padding: int
    ) -> None:
        """`padding`: the id that fills rows up. Raises ConfigError for shards of other rows."""
        check_rows(shards, kind)
        self._reading = TextReading(shards, kind, sizes.sequence_length, padding)
        layout = Answers(shards, sizes.sequence_length, each=1)
        super().__init__(shards, sizes.as_settings(sizes.weights), layout=layout)

    def data_before(self, step: int) -> dict[str, Any]:
        """All that the samples before `step` depend on, by name, as JSON has it."""
        return super().data_before(step) | {"conversations": self.shards.fingerprint}

    def denominators(self, step: int) -> dict[str, int]:
        """Rows of the global batch: one thing is to be said of each."""
        rows = self.micro_batches(step) * self.settings.micro_batch
        return {TOKENS: rows, EXAMPLES: rows}

    def targets(self, step: int) -> int:
        """Rows of the global batch of `step`."""
        return self.denominators(step)[TOKENS]

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Micro-batch `index` of `step`."""
        samples, places, rows = self._choose_samples(step, index)
        numbers = np.array([number for _, number in rows])
        return MicroBatch(
            self._reading.read_arrays(rows), samples, places.sources, _build_pieces(numbers)
        )


def _build_pieces(numbers: Integers) -> Integers:
    """[B, 3] one document a row."""
    rows = np.arange(len(numbers))
    return np.stack([rows, np.zeros_like(rows), numbers], axis=1)


def open_text_batches(
    folder: str, kind: RowKind, sizes: ConversationBatching, padding: int, cache: BlockCache | None
) -> TextBatches:
    """The batches of the rows to train on of a folder that `conversations` wrote."""
    return TextBatches(TokenShards.open(storage.join(folder, TRAIN), cache), kind, sizes, padding)


@dataclass(frozen=True)
class HeldOutTexts:
    """How held-out texts are opened to be measured."""

    folder: str
    kind: RowKind
    sequence_length: int
    padding: int
    rows: int  # of each source, at most
    cache: BlockCache | None = None

    def __call__(self) -> HeldOutSets:
        """Rows of each source, spread evenly from its first to its last, each by itself."""
        shards = TokenShards.open(storage.join(self.folder, HELD_OUT), self.cache)
        check_rows(shards, self.kind)
        reading = TextReading(shards, self.kind, self.sequence_length, self.padding)
        batches = []
        for number, source in enumerate(shards.sources):
            count = shards.count_documents(source)
            wanted = min(self.rows, count)
            for row in np.unique(np.arange(wanted) * count // wanted).tolist():
                batches.append(
                    MicroBatch(
                        reading.read_arrays([(source, row)]),
                        samples=np.array([row]),
                        sources=np.array([number]),
                        pieces=np.array([[0, 0, row]]),
                    )
                )
        return HeldOutSets(shards.sources, tuple(batches))


def find_row_kind(objective: OfLabels) -> RowKind:
    """The rows that `objective` learns from."""
    return "classified" if isinstance(objective, Classification) else "questions"


def open_texts(run: FineTuning, folder: str, padding: int) -> TuningRows:
    """The rows of a run that learns of whole texts, in the `folder` that `conversations` wrote.

    Raises ConfigError for settings that say nothing of them.
    """
    if run.pretraining:
        raise ConfigError("pretraining: text is mixed into conversations alone; leave it out here")
    assert isinstance(run.objective, OfLabels)
    kind, length = find_row_kind(run.objective), run.batches.sequence_length
    make = functools.partial(open_text_batches, folder, kind, run.batches, padding, run.cache)
    rows = run.training.held_out.rows
    held_out = HeldOutTexts(folder, kind, length, padding, rows, run.cache)
    there = TokenShards.open(storage.join(folder, HELD_OUT), run.cache).sources
    return TuningRows(kind, make, held_out if rows and there else hold_nothing_out)


def read_labels(counts: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes, as the manifest of `conversations` has them."""
    return tuple(counts.get("labels", ()))
