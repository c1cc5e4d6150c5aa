"""The batches of distillation: rows of conversations with what a teacher expects of each target."""

from dataclasses import dataclass, replace
from typing import Any

from trainrig import manifest, storage
from trainrig.posttrain.batches import ConversationBatches, ConversationBatching
from trainrig.posttrain.distillation.parts import StoredTeacher
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.train.held_out import HeldOutSets, open_held_out_conversations


class TaughtBatches(ConversationBatches):
    """Packed conversations, and a teacher beside them, as `Batches`."""

    def __init__(
        self,
        shards: TokenShards,
        sizes: ConversationBatching,
        padding: int,
        teacher: str,
        cache: BlockCache | None = None,
    ) -> None:
        """`teacher`: the folder of what it expects."""
        super().__init__(shards, sizes, padding, cache)
        self._teacher = StoredTeacher(teacher, TRAIN, shards, cache)
        self._content = manifest.read_manifest(teacher).content

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Micro-batch `index` of `step`, with what the teacher expects."""
        return self._teacher.add_to(super().micro_batch(step, index), tuple(self.sources))

    def data_before(self, step: int) -> dict[str, Any]:
        """All that the samples before `step` depend on, by name, as JSON has it."""
        return super().data_before(step) | {"teacher": self._content}


def open_taught(
    folder: str,
    sizes: ConversationBatching,
    padding: int,
    teacher: str,
    cache: BlockCache | None = None,
) -> TaughtBatches:
    """The batches of the rows to train on of a folder that `conversations` wrote."""
    shards = TokenShards.open(storage.join(folder, TRAIN), cache)
    return TaughtBatches(shards, sizes, padding, teacher, cache)


@dataclass(frozen=True)
class HeldOutTaught:
    """How held-out conversations are opened with what the teacher expects of them."""

    folder: str
    sequence_length: int
    padding: int
    rows: int  # of each source, at most
    teacher: str
    cache: BlockCache | None = None

    def __call__(self) -> HeldOutSets:
        """Rows of each source, spread evenly from its first to its last, each by itself."""
        sets = open_held_out_conversations(
            self.folder, self.sequence_length, self.padding, self.rows, self.cache
        )
        shards = TokenShards.open(storage.join(self.folder, HELD_OUT), self.cache)
        teacher = StoredTeacher(self.teacher, HELD_OUT, shards, self.cache)
        return replace(
            sets, batches=tuple(teacher.add_to(micro, sets.sources) for micro in sets.batches)
        )
