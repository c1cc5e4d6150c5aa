"""The token shards of an index: how they are divided into partitions, and where they are.

A partition holds whole documents, of one source or of several. It is described by ranges of
documents of each source, and named after the shards' fingerprint and its number.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder

TOKENIZER_FILE = "tokenizer.json"


class DocumentRange(BaseModel):
    """The documents `first` to `past` (exclusive) of a source."""

    model_config = ConfigDict(frozen=True)

    source: str
    first: int
    past: int


class IndexPartitionPlan(BaseModel):
    """A partition: its name, its documents in order, and its tokens with the separators."""

    model_config = ConfigDict(frozen=True)

    name: str
    ranges: tuple[DocumentRange, ...]
    tokens: int

    @property
    def documents(self) -> int:
        """Number of documents in the partition."""
        return sum(part.past - part.first for part in self.ranges)


class TokenSet(BaseModel):
    """One folder of token shards in an index, with its partitions: `sets/NAME.json`."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1  # another number when an older reader could misread a newer index
    folder: str  # folder that `tokenize` or `conversations` wrote, when it was indexed
    index: str  # folder of the index then, to find shards that were moved together with it
    fingerprint: str  # fingerprint of the training shards
    vocabulary: int
    partitions: tuple[IndexPartitionPlan, ...]

    @classmethod
    def read(cls, path: str) -> "TokenSet":
        """Read the description at `path`. Raises DataError if it is damaged or newer."""
        try:
            return cls.model_validate_json(storage.read(path))
        except FileNotFoundError:
            raise DataError(f"{path}: missing; run `trainrig index` again") from None
        except ValidationError as error:
            problem = error.errors()[0]
            at = ".".join(map(str, problem["loc"]))
            raise DataError(
                f"{path}: not a part of an index that this trainrig reads (`{at}`: "
                f"{problem['msg']}); upgrade trainrig, or index again"
            ) from None

    def find_folder(self, index: str) -> str:
        """Return the folder of the shards; if both were moved together, the one near `index`."""
        on_disk = not any(storage.is_remote(path) for path in (self.folder, self.index, index))
        if on_disk and not storage.exists(storage.join(self.folder, manifest.MANIFEST)):
            beside = os.path.relpath(self.folder, self.index)
            moved = os.path.normpath(os.path.join(index, beside))  # noqa: PTH118
            if storage.exists(storage.join(moved, manifest.MANIFEST)):
                return moved
        return self.folder

    def open_shards(self, index: str) -> TokenShards:
        """Open the shards. Raises DataError if they are gone, or are others than were indexed."""
        folder = self.find_folder(index)
        manifest.read_input(folder, read_token_stage(folder))
        shards = TokenShards.open(storage.join(folder, TRAIN))
        if shards.fingerprint != self.fingerprint:
            raise DataError(
                f"{folder}: other shards than {index} was made of; run `trainrig index` on them "
                "with a new `output`"
            )
        return shards


@dataclass(frozen=True)
class TokenFolder:
    """A folder of token shards to index, with its tokenizer."""

    folder: str
    shards: TokenShards
    encoder: Encoder


def read_token_stage(folder: str) -> str:
    """Return the stage that wrote the token shards in `folder`.

    Raises DataError if that stage is not finished, or makes no token shards.
    """
    stage = manifest.read_manifest(folder).stage
    if stage not in ("tokenize", "conversations"):
        raise DataError(
            f"{folder}: is the output of `{stage}`; name an output of `tokenize` or `conversations`"
        )
    return stage


def open_tokens(folders: Sequence[str]) -> list[TokenFolder]:
    """Open the training shards of `folders`.

    Raises DataError if one is unfinished or damaged, or if their tokenizers differ, and ConfigError
    if two folders have the same shards.
    """
    opened: list[TokenFolder] = []
    for folder in map(storage.make_absolute, folders):
        manifest.read_input(folder, read_token_stage(folder))
        text = manifest.read_file(folder, TOKENIZER_FILE).decode()
        encoder = Encoder(text, storage.join(folder, TOKENIZER_FILE))
        shards = TokenShards.open(storage.join(folder, TRAIN))
        if shards.vocabulary.fingerprint != encoder.fingerprint:
            raise DataError(
                f"{folder}: its {TOKENIZER_FILE} does not belong to its shards; tokenize again"
            )
        for other in opened:
            if encoder.fingerprint != other.encoder.fingerprint:
                raise DataError(
                    f"{folder}: made with another tokenizer than {other.folder}; an index has one "
                    "tokenizer, so index them separately"
                )
            if shards.fingerprint == other.shards.fingerprint:
                raise ConfigError(
                    f"tokens: {folder} holds the same shards as {other.folder}; name one of them"
                )
        opened.append(TokenFolder(folder, shards, encoder))
    return opened


def plan_partitions(shards: TokenShards, most: int) -> tuple[IndexPartitionPlan, ...]:
    """Divide the documents of `shards` into partitions of at most `most` tokens with separators.

    Depends on the shards and on `most` alone. A larger document gets a partition of its own.
    """
    plans: list[IndexPartitionPlan] = []
    ranges: list[DocumentRange] = []
    held = 0

    def close() -> None:
        nonlocal held
        name = f"{shards.fingerprint[:12]}-{len(plans):05d}"
        plans.append(IndexPartitionPlan(name=name, ranges=tuple(ranges), tokens=held))
        ranges.clear()
        held = 0

    for source in shards.sources:
        count = shards.count_documents(source)
        numbers = np.arange(count + 1, dtype=np.int64)
        begins = shards.find_document_starts(source, numbers) + numbers  # with separators
        first = 0
        while first < count:
            room = int(begins[first]) + most - held
            past = int(np.searchsorted(begins, room, side="right")) - 1
            if past <= first:
                if ranges:
                    close()
                    continue
                past = first + 1
            ranges.append(DocumentRange(source=source, first=first, past=past))
            held += int(begins[past] - begins[first])
            first = past
    if ranges:
        close()
    return tuple(plans)


def describe_set(tokens: TokenFolder, index: str, most: int) -> TokenSet:
    """Return the description of `tokens` in the index at `index`."""
    return TokenSet(
        folder=tokens.folder,
        index=storage.make_absolute(index),
        fingerprint=tokens.shards.fingerprint,
        vocabulary=tokens.shards.vocabulary.size,
        partitions=plan_partitions(tokens.shards, most),
    )


def encode_set(described: TokenSet) -> bytes:
    """Return the bytes of the file of a set."""
    return json.dumps(described.model_dump(mode="json"), indent=1).encode()
