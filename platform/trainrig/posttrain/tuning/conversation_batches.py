"""Batches of conversations, optionally mixed with pretraining text, read from token shards.

The order of rows is that of pretraining (tokens/mixing): a pure function of the step, each row once
an epoch in a seeded order, sources mixed by weight. This module builds the contents of a row.

Shapes: B rows of a micro-batch, T positions, P pieces of documents in all rows of a micro-batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import model_validator

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Field, Settings
from trainrig.errors import ConfigError
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.batch_stages import BatchSettings, Weights
from trainrig.tokens.rows.packing import Concatenate, open_layout
from trainrig.tokens.rows.plan_files import Layout
from trainrig.tokens.rows.pretraining import DocumentSources, PretrainBatches
from trainrig.tokens.rows.whole_rows import WholeRows
from trainrig.tokens.shards import token_shards
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.shard_files import FULL_WEIGHT


class ConversationBatching(batches.BatchSizes):
    """Size, length, packing and source mix of the rows in a training step."""

    # How conversations fill rows. "best_fit" packs several into a row, where none attends to
    # another; "none" gives each its own row, padded to the longest of its micro-batch. Pairs and
    # labelled answers are never packed.
    packing: Literal["best_fit", "none"] = "best_fit"
    # Share of each source in the rows, in any unit. None: in proportion to the sources' rows.
    weights: Weights | None = None
    # Largest number of passes over a source: one number for all sources, or one by source.
    epochs: Annotated[float, Field(gt=0)] | dict[str, Annotated[float, Field(gt=0)]] = math.inf

    def build_settings(self, weights: Weights | None) -> BatchSettings:
        """Return these sizes as the settings of the row order, mixed by `weights`."""
        return BatchSettings(
            sequence_length=self.sequence_length,
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            seed=self.seed,
            weights=weights,
            epochs=self.epochs,
            attend="document",
        )


class PretrainingShare(Settings):
    """Pretraining text to mix among the conversations, to reduce forgetting."""

    tokens: Annotated[str, NOT_IDENTITY]  # Folder that `tokenize` wrote with the same tokenizer.
    share: float = Field(gt=0, lt=1)  # Share of all rows that is pretraining text, between 0 and 1.
    # Share of each text source within the text. None: in proportion to the sources' rows.
    weights: Weights | None = None

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("weights: all are 0; set one above 0, or remove `pretraining`")
        return self


@dataclass(frozen=True)
class JoinedSources:
    """The sources of several token shard folders, presented as one folder."""

    parts: Sequence[token_shards.TokenShards]

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts[1:]:
            if part.vocabulary.fingerprint != first.vocabulary.fingerprint:
                raise ConfigError(
                    f"pretraining.tokens: {part.folder} was made with another tokenizer than "
                    f"{first.folder}; tokenize both with one tokenizer"
                )
            if same := set(part.sources) & set(first.sources):
                raise ConfigError(
                    f"pretraining.tokens: both {part.folder} and {first.folder} have a source "
                    f"'{min(same)}'; give one of them another name"
                )

    @property
    def folder(self) -> str:
        """The path of the first folder."""
        return self.parts[0].folder

    @property
    def vocabulary(self) -> token_shards.ShardVocabulary:
        """The vocabulary that all folders share."""
        return self.parts[0].vocabulary

    @property
    def sources(self) -> tuple[str, ...]:
        """The source names of all folders, in alphabetical order."""
        return tuple(sorted(source for part in self.parts for source in part.sources))

    @property
    def fingerprint(self) -> str:
        """The joined fingerprints of all folders."""
        return "+".join(part.fingerprint for part in self.parts)

    def find_part(self, source: str) -> token_shards.TokenShards:
        """Return the shards that contain `source`."""
        return next(part for part in self.parts if source in part.sources)

    def tokens(self, source: str) -> int:
        """Return the number of token ids in `source`."""
        return self.find_part(source).tokens(source)

    def document(self, source: str, number: int) -> token_shards.IndexedDocument:
        """Return document `number` of `source`."""
        return self.find_part(source).document(source, number)


@dataclass(frozen=True)
class JoinedLayout:
    """Row layout that uses a separate layout for each source."""

    layouts: Mapping[str, Layout]  # The key is the source.

    @property
    def fingerprint(self) -> str:
        """The joined fingerprints of the distinct packing plans."""
        return "+".join(dict.fromkeys(layout.fingerprint for layout in self.layouts.values()))

    def windows(self, source: str) -> int:
        """Return the number of rows in `source`."""
        return self.layouts[source].windows(source)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return the targets of each row, as [B]; text omits the first token of each document."""
        return self.layouts[source].targets(source, windows, span)

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill one row of `source` with its ids and targets."""
        return self.layouts[source].read(source, window, span, ids, targets)


class ConversationBatches(PretrainBatches):
    """Batches of packed conversations and optional pretraining text; implements `Batches`."""

    def __init__(
        self,
        shards: token_shards.TokenShards,
        sizes: ConversationBatching,
        padding: int,
        cache: BlockCache | None = None,
        pretraining: PretrainingShare | None = None,
    ) -> None:
        """Open conversations of `shards`; `padding` is the token id that fills rows up.

        Raises ConfigError for shards of another kind of row, and for settings that do not fit them.
        """
        token_shards.check_rows(shards, "conversations")
        length = sizes.sequence_length
        rows = WholeRows(shards, length, padding, cache, together=sizes.packing == "best_fit")
        layouts: dict[str, Layout] = dict.fromkeys(shards.sources, rows)
        sources: DocumentSources = shards
        weights = sizes.weights
        if pretraining:
            text = token_shards.TokenShards.open(
                storage.join(pretraining.tokens, token_shards.TRAIN), cache
            )
            sources = JoinedSources([shards, text])
            of_text = open_layout(Concatenate(), text, length, cache)
            layouts |= dict.fromkeys(text.sources, of_text)
            weights = _share_weights(sizes, pretraining, shards.sources, text.sources, layouts)
        self._whole = rows
        self._conversations = frozenset(shards.sources)
        self._trimmed = sizes.packing == "none" and not pretraining
        super().__init__(sources, sizes.build_settings(weights), layout=JoinedLayout(layouts))

    def denominators(self, step: int) -> dict[str, int]:
        """Return the targets of the global batch, and their weights in hundredths."""
        tokens = weight = 0
        for index in range(self.micro_batches(step)):
            places = self._locate_samples(step, index)[1]
            for source, _, rows in self._iterate_rows(places):
                if source in self._conversations:
                    tokens += int(self._whole.targets(source, rows.windows, 1).sum())
                    weight += int(self._whole.sum_weights(source, rows.windows).sum())
                else:
                    counts = self._layout.targets(source, rows.windows, 1)
                    begun = sum(
                        self._count_begun(source, window) for window in rows.windows.tolist()
                    )
                    tokens += int(counts.sum()) - begun
                    weight += (int(counts.sum()) - begun) * FULL_WEIGHT
        return {batches.TOKENS: tokens, batches.WEIGHTS: weight}

    def targets(self, step: int) -> int:
        """Return the number of targets in the whole global batch of `step`."""
        return self.denominators(step)[batches.TOKENS]

    def micro_batch(self, step: int, index: int) -> batches.MicroBatch:
        """Return micro-batch `index` of `step`, with the weights of its targets."""
        micro = super().micro_batch(step, index)
        _, _, windows = self._choose_samples(step, index)
        arrays = dict(micro.arrays)
        targets_BT = arrays[batches.TARGETS]
        weights_BT = np.zeros_like(targets_BT)
        for row, (source, window) in enumerate(windows):
            if source in self._conversations:
                self._whole.read_target_weights(source, window, weights_BT[row])
            else:  # In text, no document predicts the first id of the next document.
                begun = np.flatnonzero(arrays[batches.POSITIONS][row] == 0)
                targets_BT[row, begun[begun > 0] - 1] = batches.IGNORE
                weights_BT[row] = np.where(targets_BT[row] == batches.IGNORE, 0, FULL_WEIGHT)
        arrays[batches.WEIGHTS] = weights_BT
        if self._trimmed:
            width = max(1, int((targets_BT != batches.IGNORE).any(0).nonzero()[0].max()) + 1)
            arrays = {
                name: np.ascontiguousarray(array[:, :width]) for name, array in arrays.items()
            }
        return batches.MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)

    def data_before(self, step: int) -> dict[str, Any]:
        """Return everything that the samples before `step` depend on, as JSON by name."""
        return super().data_before(step) | {"conversations": self.shards.fingerprint}

    def _count_begun(self, source: str, window: int) -> int:
        """Return how many documents start in a row of text after its first position."""
        ids, targets = np.empty((2, self.settings.base_length), dtype=np.int64)
        return len(self._layout.read(source, window, 1, ids, targets)) - 1


def _share_weights(
    sizes: ConversationBatching,
    pretraining: PretrainingShare,
    told: Sequence[str],
    text: Sequence[str],
    layouts: Mapping[str, Layout],
) -> Weights:
    """Return the weights of all sources, with pretraining text scaled to its share."""
    found: Weights = {}
    for names, given, share in (
        (told, sizes.weights, 1 - pretraining.share),
        (text, pretraining.weights, pretraining.share),
    ):
        own = given or {name: float(layouts[name].windows(name)) for name in names}
        whole = sum(own.values())
        if not whole:
            raise ConfigError(
                "batches: every source is shorter than one row; lower sequence_length"
            )
        found |= {name: weight / whole * share for name, weight in own.items()}
    return found
