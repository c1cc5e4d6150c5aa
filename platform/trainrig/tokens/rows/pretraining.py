"""Batches of pretraining: rows of token shards, mixed by source and shuffled.

Samples are numbered from 0 for the whole run. The timeline decides which source and which row of
it sample k is (timeline.py: stages, weights, caps). The order of the source decides which windows
that row has (window_order.py: epochs, permutations). The layout decides which tokens those
windows hold (packing.py). Each of the three computes its answer directly for any k. So a batch is
a pure function of the step: a resume, a rollback or another number of workers needs no state and
no seeking.

Before a run starts, `check_enough_data` raises an error if the run has too little data for its
steps.

Shapes: B sequences of a micro-batch, T positions of a sequence, W positions of a base window.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainrig.config import suggest_choice
from trainrig.errors import ConfigError, DataError
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.batch_stages import BatchSettings, StageSizes
from trainrig.tokens.rows.masked_documents import MaskedDocuments, MaskedRows, UsedMasks
from trainrig.tokens.rows.packing import open_layout
from trainrig.tokens.rows.plan_files import Layout
from trainrig.tokens.rows.timeline import Places, Timeline
from trainrig.tokens.rows.window_order import RowStarts, WindowBlocks
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import IndexedDocument, ShardVocabulary, TokenShards


def check_enough_data(
    timeline: Timeline, caps: Mapping[str, float], steps: int
) -> dict[str, float]:
    """Return the epochs of each source that `steps` steps read; a fraction counts as such.

    Raises ConfigError if a source exceeds its entry of `caps`, or if all sources of a stage end
    too early. The message is about the source that reaches its cap first, and suggests values that
    would work.
    """
    samples = timeline.find_first_sample(steps)
    if timeline.end is not None and samples > timeline.end:
        enough = timeline.find_step(timeline.end)
        raise ConfigError(
            f"batches: {timeline.describe_last_read()} reach their caps of epochs after {enough} "
            f"whole steps, but training.steps is {steps}; train for {enough} steps or fewer, or "
            "raise batches.epochs"
        )
    read = timeline.count_epochs_read(samples)
    beyond = {
        source: timeline.find_first_beyond(source, caps[source])
        for source, epochs in read.items()
        if epochs > caps[source]
    }
    if beyond:
        source = min(beyond, key=lambda name: (beyond[name], name))
        raise ConfigError(_explain_excess(timeline, source, caps[source], steps, beyond[source]))
    return read


def _explain_excess(timeline: Timeline, source: str, cap: float, steps: int, first: int) -> str:
    samples = timeline.find_first_sample(steps)
    epochs = timeline.count_epochs_read(samples)[source]
    enough = timeline.find_step(first)
    fewer = f"train for {enough} steps or fewer, " if enough else ""
    share = _compute_share(timeline, source, samples)
    lower = math.floor(share * cap / epochs * 1e4) / 1e4
    return (
        f"batches: source '{source}' would be read {epochs:.2f} times in {steps} steps, beyond its "
        f"cap of {cap:g} epochs; {fewer}give it less weight (about {lower:g} of the samples, not "
        f"{share:.4g}), set epochs.{source} = {math.ceil(epochs * 100) / 100:g}, or set "
        'when_exhausted = "renormalise"'
    )


def _compute_share(timeline: Timeline, source: str, samples: int) -> float:
    """Return the share of `source` in the first `samples` samples."""
    total = 0
    firsts = [segment.first for segment in timeline.segments]
    for segment, past in zip(timeline.segments, [*firsts[1:], samples], strict=True):
        count = min(past, samples) - segment.first
        if count > 0:
            total += segment.mixture.count_samples(count).get(source, 0)
    return total / samples


class DocumentSources(Protocol):
    """The interface of a collection of documents, grouped by source and numbered in each source."""

    @property
    def folder(self) -> str:
        """Folder of the documents, for error messages."""
        ...

    @property
    def vocabulary(self) -> ShardVocabulary:
        """Vocabulary that the token ids belong to."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources, in alphabetical order."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all readable content."""
        ...

    def tokens(self, source: str) -> int:
        """Return the number of tokens of `source`."""
        ...

    def document(self, source: str, number: int) -> IndexedDocument:
        """Return the index entry of document `number` of `source`."""
        ...


@dataclass(frozen=True)
class LocatedPiece:
    """The part of a document that is in a row."""

    place: int  # position of its first id in the row
    document: IndexedDocument


@dataclass(frozen=True)
class Location:
    """Origin of a sample: its step, source, epoch, window and documents."""

    sample: int
    step: int
    source: str
    epoch: int
    window: int  # first base window of the row, in the source
    pieces: tuple[LocatedPiece, ...]


class PretrainBatches:
    """Batches of rows of token shards; an implementation of `Batches`."""

    def __init__(
        self,
        shards: DocumentSources,
        settings: BatchSettings,
        cache: BlockCache | None = None,
        layout: Layout | None = None,
        corruption: batches.Corruption | None = None,
        masked: MaskedDocuments | None = None,
    ) -> None:
        """Prepare the order of all samples.

        Args:
            shards: The documents.
            settings: The `[batches]` table of the run file.
            cache: Keeps blocks of a packing plan that is in a bucket.
            layout: Rows of `shards`; None: those of the packing in `settings`.
            corruption: Transformation that the objective applies to each row; None: no change.
            masked: Documents that are not trained on, of rows of `settings.packing`; None: all are.

        Raises:
            ConfigError: The settings do not fit the sources.
            DataError: A source with weight has no complete window, or a masked document is not
                among the documents.
        """
        self.shards = shards
        self.settings = settings
        self.sources = shards.sources
        if not self.sources:
            raise DataError(f"{shards.folder}: the shards hold no tokens; tokenize some documents")
        below = None
        if layout is None:
            assert isinstance(shards, TokenShards)
            layout = below = open_layout(settings.packing, shards, settings.base_length, cache)
            if masked:
                layout = MaskedRows(below, shards, masked, settings.base_length)
        self._layout = layout
        self.corruption = corruption
        together = settings.longest_length // settings.base_length
        counts = {source: self._layout.windows(source) // together for source in self.sources}
        stages = settings.resolve_stages()
        weights = [_resolve_weights(stage, settings, counts, shards) for stage in stages]
        read = [source for source in counts if any(stage.get(source, 0) for stage in weights)]
        # Sources too short for one row, which only default weights leave out.
        self.left_out = tuple(s for s in counts if settings.weights is None and not counts[s])
        _check_caps(settings, self.sources, shards.folder)
        caps = {source: settings.cap(source) for source in read}
        self.timeline = Timeline(
            stages,
            weights,
            self.sources,
            {s: WindowBlocks(s, counts[s], together, settings.seed) for s in read},
            settings.base_length,
            caps if settings.when_exhausted == "renormalise" else {},
        )
        self._below = below  # without masks; None: rows of a layout that cannot be masked
        self._used_masks = self._open_used_masks(masked) if masked else None
        # Source and number of each masked document.
        self.masked: frozenset[tuple[str, int]] = frozenset(
            (document.source, document.number) for document in (masked.documents if masked else ())
        )

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches in the global batch of `step` (from 0)."""
        stage = self.timeline.find_stage(step)
        return stage.global_batch // stage.micro_batch

    def count_row_targets(self, step: int) -> tuple[Integers, Integers]:
        """Return [R] the samples of the global batch of `step`, and [R] their numbers of targets.

        Targets are counted before any corruption, without reading tokens.
        """
        first = self.timeline.find_first_sample(step)
        stage = self.timeline.find_stage(step)
        samples = np.arange(first, first + stage.global_batch, dtype=np.int64)
        places = self.timeline.find_places(samples)
        counts = np.zeros(len(samples), dtype=np.int64)
        for source, mask, rows in self._iterate_rows(places):
            span = rows.read.shape[1]
            found = self._layout.targets(source, rows.windows, span)
            if rows.read.any():
                again = (rows.windows[:, None] + np.arange(span))[rows.read]
                repeated = np.zeros(rows.read.shape, dtype=np.int64)
                repeated[rows.read] = self._layout.targets(source, again, 1)
                found = found - repeated.sum(1)
            counts[mask] = found
        return samples, counts

    def targets(self, step: int) -> int:
        """Return the number of targets in the global batch of `step`, without reading tokens."""
        return self.denominators(step)[batches.TOKENS]

    def denominators(self, step: int) -> dict[str, int]:
        """Return the denominators of the losses of the global batch of `step`, by name.

        The number of targets is exact, but at least 1 if documents are masked. Other denominators
        are at least 1, so that an empty sum divided by one stays 0.
        """
        samples, counts = self.count_row_targets(step)
        if self.corruption is None:
            least = 0 if self._used_masks is None else 1  # masks may leave no target
            return {batches.TOKENS: max(least, int(counts.sum()))}
        total: dict[str, int] = {}
        size = self.timeline.find_stage(step).micro_batch
        for rows in zip(samples.reshape(-1, size), counts.reshape(-1, size), strict=True):
            for name, count in self.corruption.denominators(step, *rows).items():
                total[name] = total.get(name, 0) + count
        return {
            name: count if name == batches.TOKENS else max(1, count)
            for name, count in total.items()
        }

    def micro_batch(self, step: int, index: int) -> batches.MicroBatch:
        """Return micro-batch `index` of `step`; raise ConfigError if the data ends before it."""
        samples, places = self._locate_samples(step, index)
        stage = self.timeline.find_stage(step)
        ids_BT, targets_BT = np.empty((2, stage.micro_batch, stage.sequence_length), dtype=np.int64)
        pieces = self._read(places, ids_BT, targets_BT)
        by_document = self.settings.attend == "document"
        positions = _compute_positions(pieces, ids_BT.shape) if by_document else None
        arrays = batches.build_token_arrays(ids_BT, targets_BT, positions)
        micro = batches.MicroBatch(arrays, samples, places.sources, pieces)
        return micro if self.corruption is None else self.corruption.apply(micro, step)

    def _locate_samples(self, step: int, index: int) -> tuple[Integers, Places]:
        """Return [B] the samples of a micro-batch, and their sources and rows."""
        if not 0 <= index < self.micro_batches(step):
            raise ValueError(f"no micro-batch {index} among {self.micro_batches(step)} of a step")
        stage = self.timeline.find_stage(step)
        first = self.timeline.find_first_sample(step) + index * stage.micro_batch
        samples = np.arange(first, first + stage.micro_batch, dtype=np.int64)
        return samples, self.timeline.find_places(samples)

    def _choose_samples(
        self, step: int, index: int
    ) -> tuple[Integers, Places, list[tuple[str, int]]]:
        """Return the samples of a micro-batch, their sources and rows, and where each row begins.

        The last is a list of (source, first base window). Raises as `micro_batch` does.
        """
        samples, places = self._locate_samples(step, index)
        windows: list[tuple[str, int]] = [("", 0)] * len(samples)
        for source, mask, rows in self._iterate_rows(places):
            for row, window in zip(np.flatnonzero(mask), rows.windows.tolist(), strict=True):
                windows[row] = source, window
        return samples, places, windows

    def _read(self, places: Places, ids_BT: Integers, targets_BT: Integers) -> Integers:
        """Fill the rows of a micro-batch; return its pieces of documents [P, 3]."""
        pieces: list[Integers] = [np.empty((0, 2), dtype=np.int64)] * len(ids_BT)
        for source, mask, rows in self._iterate_rows(places):
            span = rows.read.shape[1]
            for row, window, read in zip(
                np.flatnonzero(mask), rows.windows, rows.read, strict=True
            ):
                pieces[row] = self._layout.read(
                    source, int(window), span, ids_BT[row], targets_BT[row]
                )
                targets_BT[row].reshape(span, -1)[read] = batches.IGNORE
        of_rows = np.repeat(np.arange(len(pieces)), [len(row_pieces) for row_pieces in pieces])
        return np.concatenate([of_rows[:, None], np.concatenate(pieces)], axis=1)

    def at(self, step: int) -> tuple[batches.MicroBatch, ...]:
        """Return all micro-batches of `step`."""
        return tuple(self.micro_batch(step, index) for index in range(self.micro_batches(step)))

    def locate(self, sample: int) -> Location:
        """Return the source, epoch, window and documents of a sample."""
        places = self.timeline.find_places(np.array([sample], dtype=np.int64))
        ((source, _, rows),) = self._iterate_rows(places)
        span = rows.read.shape[1]
        window = int(rows.windows[0])
        ids, targets = np.empty((2, span * self.settings.base_length), dtype=np.int64)
        found = self._layout.read(source, window, span, ids, targets)
        return Location(
            sample=sample,
            step=self.timeline.find_step(sample),
            source=source,
            epoch=int(rows.epochs[0]),
            window=window,
            pieces=tuple(
                LocatedPiece(place, self.shards.document(source, number))
                for place, number in found.tolist()
            ),
        )

    def data_before(self, step: int) -> dict[str, Any]:
        """Return all that the samples before `step` depend on, by name, as JSON values."""
        samples = self.timeline.find_first_sample(step)
        corruption = self.corruption
        return {
            **({} if corruption is None else {"corruption": dict(corruption.identity())}),
            **self._list_micro_batch_sizes(samples),
            "shards": self.shards.fingerprint,
            "packing": self.settings.packing.model_dump(mode="json"),
            "plan": self._layout.fingerprint,
            "attend": self.settings.attend,
            "seed": self.settings.seed,
            "base_sequence_length": self.settings.base_length,
            "longest_sequence_length": self.settings.longest_length,
            "samples": samples,
            "segments": self.timeline.describe_segments(samples),
            **self._describe_masks(samples),
        }

    def _open_used_masks(self, masked: MaskedDocuments) -> UsedMasks:
        assert self._below is not None
        return UsedMasks(self.timeline, masked, self._below)

    def iterate_uses(
        self, masked: MaskedDocuments, past: int
    ) -> Iterator[tuple[int, int, str, int]]:
        """Yield (step, sample, source, document's number) for each row that uses a document.

        A row uses a document if a token of it is an id or a target of the row.

        The documents are those of `masked`, whether these batches mask them or not. The steps end
        before `past`.
        """
        uses = self._open_used_masks(masked).iterate(0, self.timeline.find_first_sample(past))
        for sample, source, number in uses:
            yield self.timeline.find_step(sample), sample, source, number

    def _describe_masks(self, samples: int) -> dict[str, Any]:
        """Return the masked documents of the first `samples` samples, if there are any."""
        used = self._used_masks.describe(samples) if self._used_masks else {}
        return {"masked_documents": used} if used else {}

    def _list_micro_batch_sizes(self, samples: int) -> dict[str, Any]:
        """Return the sizes of micro-batches before `samples`, if a corruption depends on them."""
        if (
            not isinstance(self.corruption, batches.MixedCorruption)
            or not self.corruption.by_micro_batch
        ):
            return {}
        stages = self.timeline.stages
        return {
            "micro_batches": [
                [stage.first_sample, stage.micro_batch]
                for stage in stages
                if stage.first_sample < max(samples, 1)
            ]
        }

    def check_epochs(self, steps: int) -> dict[str, float]:
        """Return the number of epochs that `steps` steps read of each source.

        Raises ConfigError if a source exceeds its cap, or if all sources end before the last step.
        """
        caps = {s: self.settings.cap(s) for s in self.timeline.count_epochs_read(0)}
        return check_enough_data(self.timeline, caps, steps)

    def _iterate_rows(self, places: Places) -> Iterator[tuple[str, Any, RowStarts]]:
        """Yield (source, mask of the samples that are of it, their rows) for each source."""
        for number in np.unique(places.sources):
            mask = places.sources == number
            source = self.sources[number]
            source_stage = self.timeline.find_source_stage(places.stage, source)
            yield source, mask, source_stage.find_rows(places.ordinals[mask])


def _compute_positions(pieces: Integers, shape: tuple[int, ...]) -> Integers:
    """Return [B, T] the position of each id within its piece of a document."""
    begins_BT = np.zeros(shape, dtype=np.int64)
    begins_BT[pieces[:, 0], pieces[:, 1]] = pieces[:, 1]
    return np.arange(shape[1]) - np.maximum.accumulate(begins_BT, axis=1)


def _check_caps(settings: BatchSettings, sources: tuple[str, ...], folder: str) -> None:
    for source in settings.epochs if isinstance(settings.epochs, dict) else ():
        if source not in sources:
            raise ConfigError(
                f"epochs: {folder} has no source '{source}'{suggest_choice(source, sources)}"
            )


def _resolve_weights(
    stage: StageSizes, settings: BatchSettings, counts: Mapping[str, int], shards: DocumentSources
) -> Mapping[str, float]:
    """Return the weights of a stage; `counts` are the sources' rows of the longest length."""
    where = f"from step {stage.from_step}: " if stage.from_step else ""
    if stage.weights is None:
        if not any(counts.values()):
            raise DataError(
                f"{shards.folder}: no source has a window of {settings.longest_length + 1} tokens; "
                "lower sequence_length"
            )
        return {source: count for source, count in counts.items() if count}
    for source in stage.weights:
        if source not in counts:
            raise ConfigError(
                f"{where}weights: {shards.folder} has no source '{source}'"
                f"{suggest_choice(source, counts)}"
            )
    for source, count in counts.items():
        if source not in stage.weights:
            raise ConfigError(
                f"{where}weights: source '{source}' of {shards.folder} has no weight; give it "
                "one, or 0 to leave it out"
            )
        if stage.weights[source] and not count:
            raise DataError(
                f"{shards.folder}: source '{source}' has {shards.tokens(source)} tokens, less than "
                f"a window of {settings.longest_length + 1}; lower sequence_length, or give it "
                "the weight 0"
            )
    return stage.weights
