"""Files of a teacher's token probabilities, and the batches of distillation that read them.

    OUT/SPLIT-NNNNN.ids    [targets, E] uint16, or uint32 above 65,536 entries, likeliest first
    OUT/SPLIT-NNNNN.log    [targets, E] float32, their log-probabilities
    OUT/SPLIT-NNNNN.rest   [targets] float32, the log-probability of all other entries together

Each file has its block checksums beside it (tokens/shards/flat_arrays.py). A part holds the targets
of neighbouring conversations of one source, in order. The shards alone determine which
conversations a part holds. A batch has conversations with the probabilities for each target.

Shapes: N targets, E vocabulary entries that are kept for each target.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.tuning.conversation_batches import ConversationBatches, ConversationBatching
from trainrig.tokens.batches import IGNORE, TEACHER_IDS, TEACHER_LOG, TEACHER_REST, MicroBatch
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.flat_arrays import SUMS, FlatArray, compute_block_sums
from trainrig.tokens.shards.shard_files import DOCUMENT_TARGETS
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.train.held_out_loss import HeldOutSets, open_held_out_conversations

IDS = "ids"
LOG = "log"
REST = "rest"
FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class TeacherPart:
    """Neighbouring conversations of one source, stored in one file of each kind."""

    name: str
    source: str
    first: int  # Number of the first conversation within its source.
    past: int


def cut_parts(shards: TokenShards, split: str, part_tokens: int) -> Iterator[TeacherPart]:
    """Yield the parts of the shards of `split`, in order.

    A part has about `part_tokens` tokens and only whole conversations.
    """
    number = 0
    for source in shards.sources:
        count = shards.count_documents(source)
        starts = shards.find_document_starts(source, np.arange(count + 1))
        first = 0
        while first < count:
            wanted = np.searchsorted(starts, starts[first] + part_tokens, "left")
            past = min(max(int(wanted), first + 1), count)
            yield TeacherPart(f"{split}-{number:05d}", source, first, past)
            first = past
            number = number + 1


def write_part(folder: str, name: str, arrays: dict[str, NDArray[Any]]) -> dict[str, FileSum]:
    """Write the `arrays` of a part, keyed by file ending; return the checksums of all files."""
    files = {}
    for ending, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        for file, content in (
            (f"{name}.{ending}", data),
            (f"{name}.{ending}{SUMS}", compute_block_sums([data])),
        ):
            storage.write(storage.join(folder, file), content)
            files[file] = manifest.compute_file_sum(storage.join(folder, file))
    return files


def choose_dtype(vocabulary: int) -> np.dtype[Any]:
    """Return the dtype in which token ids are stored."""
    return np.dtype("<u2" if vocabulary <= 2**16 else "<u4")


@dataclass(frozen=True)
class _OpenPart:
    ends: Integers  # End of each conversation's targets in the part.
    ids: FlatArray
    log: FlatArray
    rest: FlatArray


class StoredTeacher:
    """A teacher's stored probabilities for the conversations of one split.

    Files are read on demand. It can be pickled.
    """

    def __init__(
        self, folder: str, split: str, shards: TokenShards, cache: BlockCache | None = None
    ) -> None:
        """Open the `folder` that `trainrig teacher` wrote.

        Raises DataError if the folder is incomplete.
        """
        written = manifest.read_input(folder, "teacher")
        self.entries = int(written.config["entries"])
        self._folder = folder
        self._shards = shards
        self._cache = cache
        parts = list(cut_parts(shards, split, int(written.config["part_tokens"])))
        self._parts = {
            source: [part for part in parts if part.source == source] for source in shards.sources
        }
        self._opened: dict[str, _OpenPart] = {}

    def add_to(self, micro: MicroBatch, sources: tuple[str, ...]) -> MicroBatch:
        """Return `micro` with the teacher's probabilities for each of its targets.

        `sources` are the names that the source numbers of `micro` index. Its pieces must be whole
        conversations.
        """
        shape = (*micro.targets.shape, self.entries)
        arrays: dict[str, NDArray[Any]] = {
            TEACHER_IDS: np.zeros(shape, dtype=np.int32),
            TEACHER_LOG: np.zeros(shape, dtype=np.float32),
            TEACHER_REST: np.zeros(shape[:2], dtype=np.float32),
        }
        ends = np.append(micro.pieces[1:, 1], shape[1])
        ends[np.append(np.diff(micro.pieces[:, 0]), 1) != 0] = shape[1]
        for (row, begin, number), end in zip(micro.pieces.tolist(), ends.tolist(), strict=True):
            places = begin + np.flatnonzero(micro.targets[row, begin:end] != IGNORE)
            found = self.read(sources[micro.sources[row]], number)
            for name, values in zip(arrays, found, strict=True):
                arrays[name][row, places] = values
        return MicroBatch({**micro.arrays, **arrays}, micro.samples, micro.sources, micro.pieces)

    def read(
        self, source: str, number: int
    ) -> tuple[Integers, NDArray[np.float32], NDArray[np.float32]]:
        """Return the stored probabilities of the targets of one conversation.

        The result is ids [N, E], their log-probabilities [N, E], and the log-probability of all
        other entries [N]. Raises DataError if a file was changed.
        """
        parts = self._parts[source]
        place = int(np.searchsorted([part.first for part in parts], number, "right")) - 1
        part = self._open(parts[place])
        at = number - parts[place].first
        begin = int(part.ends[at - 1]) if at else 0
        end = int(part.ends[at])
        wide = (begin * self.entries, end * self.entries)
        shape = (end - begin, self.entries)
        return (
            part.ids.read(*wide).reshape(shape),
            part.log.read(*wide).reshape(shape),
            part.rest.read(begin, end),
        )

    def _open(self, part: TeacherPart) -> "_OpenPart":
        if (opened := self._opened.get(part.name)) is not None:
            return opened
        numbers = np.arange(part.first, part.past)
        ends = np.cumsum(self._shards.read_document_values(DOCUMENT_TARGETS, part.source, numbers))
        count = int(ends[-1])
        path = storage.join(self._folder, part.name)
        dtype = choose_dtype(self._shards.vocabulary.size)
        wide = count * self.entries
        self._opened[part.name] = opened = _OpenPart(
            ends,
            FlatArray(f"{path}.{IDS}", dtype, wide, self._cache),
            FlatArray(f"{path}.{LOG}", FLOAT, wide, self._cache),
            FlatArray(f"{path}.{REST}", FLOAT, count, self._cache),
        )
        return opened


def check_teacher(folder: str, conversations: Manifest, temperature: float) -> Manifest:
    """Return the manifest of `folder`, which `trainrig teacher` wrote for `conversations`.

    Raises DataError if it is not such a folder, and ConfigError if it belongs to other
    conversations or to another temperature than `temperature`.
    """
    written = manifest.read_input(folder, "teacher")
    if written.inputs["conversations"] != conversations.content:
        raise ConfigError(
            f"teacher: {folder} was made from conversations that have changed since; run "
            "`teacher` again, with another `output`"
        )
    if (stored := written.config["temperature"]) != temperature:
        raise ConfigError(
            f"objective.temperature is {temperature}, but {folder} was made with {stored}; "
            "give both the same temperature"
        )
    return written


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


def open_held_out_taught(
    folder: str, length: int, padding: int, rows: int, teacher: str, cache: BlockCache | None
) -> HeldOutSets:
    """Return up to `rows` held-out rows of each source, with the teacher's probabilities."""
    sets = open_held_out_conversations(folder, length, padding, rows, cache)
    shards = TokenShards.open(storage.join(folder, HELD_OUT), cache)
    stored = StoredTeacher(teacher, HELD_OUT, shards, cache)
    return replace(
        sets, batches=tuple(stored.add_to(micro, sets.sources) for micro in sets.batches)
    )
