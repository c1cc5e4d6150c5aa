"""Batches of distillation: conversations with the teacher's probabilities for each target."""

from dataclasses import dataclass, replace
from typing import Any

from trainrig import manifest, storage
from trainrig.posttrain.batches import ConversationBatches, ConversationBatching
from trainrig.posttrain.distillation.parts import StoredTeacher
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.train.held_out_loss import (
    HeldOutSets,
    open_held_out_conversations,
)


class TaughtBatches(ConversationBatches):
    """Batches of packed conversations with teacher probabilities; implements `Batches`."""

    def __init__(
        self,
        shards: TokenShards,
        sizes: ConversationBatching,
        padding: int,
        teacher: str,
        cache: BlockCache | None = None,
    ) -> None:
        """Open conversations of `shards` with the probabilities in the folder `teacher`.

        `trainrig teacher` wrote that folder.
        """
        super().__init__(shards, sizes, padding, cache)
        self._teacher = StoredTeacher(teacher, TRAIN, shards, cache)
        self._content = manifest.read_manifest(teacher).content

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Return micro-batch `index` of `step`, with the teacher's probabilities."""
        return self._teacher.add_to(super().micro_batch(step, index), tuple(self.sources))

    def data_before(self, step: int) -> dict[str, Any]:
        """Return everything that the samples before `step` depend on, as JSON by name."""
        return super().data_before(step) | {"teacher": self._content}


def open_taught(
    folder: str,
    sizes: ConversationBatching,
    padding: int,
    teacher: str,
    cache: BlockCache | None = None,
) -> TaughtBatches:
    """Open the training batches of a folder that `conversations` wrote, with a teacher."""
    shards = TokenShards.open(storage.join(folder, TRAIN), cache)
    return TaughtBatches(shards, sizes, padding, teacher, cache)


@dataclass(frozen=True)
class HeldOutTaught:
    """A function that opens held-out conversations with teacher probabilities.

    It can be pickled.
    """

    folder: str
    sequence_length: int
    padding: int
    rows: int  # Largest number of rows of each source.
    teacher: str
    cache: BlockCache | None = None

    def __call__(self) -> HeldOutSets:
        """Return held-out rows of each source, evenly spaced, one row a batch."""
        sets = open_held_out_conversations(
            self.folder, self.sequence_length, self.padding, self.rows, self.cache
        )
        shards = TokenShards.open(storage.join(self.folder, HELD_OUT), self.cache)
        teacher = StoredTeacher(self.teacher, HELD_OUT, shards, self.cache)
        return replace(
            sets, batches=tuple(teacher.add_to(micro, sets.sources) for micro in sets.batches)
        )
