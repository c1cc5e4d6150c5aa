"""The batches of a training run: what is learnt from at each step, whoever asks, in any order.

Each source is one array of ids, cut into windows of T + 1 ids that begin T apart: the last id of
one is the first of the next, so each token is a target once an epoch, but for the first and up to
T - 1 at the end. Samples are numbered from 0 for the whole run. Sample k belongs to the source that
slot k of the mixture's repeating table names. Of a source with n windows, the j-th sample is window
j mod n of epoch j // n, under a permutation of 0..n-1 that is computed, not stored. So `at(step)`
is a pure function; a resume, a rollback or another number of workers needs no state, no seeking.

Shapes: B sequences of a micro-batch, T positions.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import model_validator

from trainrig.config import Field, did_you_mean
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import BatchSizes, MicroBatch
from trainrig.tokens.mixture import Mixture
from trainrig.tokens.permutation import Integers, permuted
from trainrig.tokens.shards import IndexedDocument, TokenShards


class BatchSettings(BatchSizes):
    """Batches of pretraining: windows of token shards, mixed by source."""

    # Shares of the samples by source, in any unit. None: in proportion to the windows each source
    # has, so that all sources begin their epochs together.
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("weights: all are 0 or none is given; give one above 0, or leave out")
        return self


@dataclass(frozen=True)
class Location:
    """Where a sample comes from."""

    sample: int
    source: str
    epoch: int
    window: int
    start: int  # the window's first id in the source, in tokens
    documents: tuple[IndexedDocument, ...]  # that the window's T + 1 ids are of


class PretrainBatches:
    """Windows of token shards, mixed by source and shuffled."""

    def __init__(self, shards: TokenShards, settings: BatchSettings) -> None:
        """Raises ConfigError for weights that do not fit the sources, DataError for a source that
        is to be read but has not one window."""
        self.shards = shards
        self.settings = settings
        length = settings.sequence_length
        windows = {source: (shards.tokens(source) - 1) // length for source in shards.sources}
        if not windows:
            raise DataError(f"{shards.folder}: the shards hold no tokens; tokenize some documents")
        self.mixture = Mixture.of(_weights(settings, windows, shards.folder))
        self.windows = {source: windows[source] for source in self.mixture.sources}  # of an epoch
        for source, count in self.windows.items():
            if count == 0:
                raise DataError(
                    f"{shards.folder}: source '{source}' has {shards.tokens(source)} tokens, less "
                    f"than a window of {length + 1}; lower sequence_length, or give it the weight 0"
                )

    def at(self, step: int) -> tuple[MicroBatch, ...]:
        """The global batch of `step` (from 0), in micro-batches. Never runs out: epochs follow."""
        if step < 0:
            raise ValueError(f"there is no step {step}")
        sequences, size = self.settings.global_batch, self.settings.micro_batch
        samples = np.arange(step * sequences, (step + 1) * sequences, dtype=np.int64)
        ids = self._read(samples)
        return tuple(
            MicroBatch(ids[cut, :-1].copy(), ids[cut, 1:].copy(), samples[cut])
            for cut in (slice(begin, begin + size) for begin in range(0, sequences, size))
        )

    def locate(self, sample: int) -> Location:
        """Source, epoch, window and documents of the sample of this number."""
        sources, epochs, windows = self._places(np.array([sample], dtype=np.int64))
        source = self.mixture.sources[sources[0]]
        length = self.settings.sequence_length
        window = int(windows[0])
        documents = tuple(self.shards.documents(source, window * length, length + 1))
        return Location(sample, source, int(epochs[0]), window, window * length, documents)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the content of each sample depends on.

        Not of the sizes of batches: they say which step a sample is seen in, not what it is.
        """
        content = {
            "shards": self.shards.fingerprint,
            "seed": self.settings.seed,
            "sequence_length": self.settings.sequence_length,
            "mixture": dict(zip(self.mixture.sources, self.mixture.slots, strict=True)),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _read(self, samples: Integers) -> Integers:
        """[B, T + 1] the windows of `samples`."""
        length = self.settings.sequence_length
        ids = np.empty((len(samples), length + 1), dtype=np.int64)
        sources, _, windows = self._places(samples)
        for row, (source, window) in enumerate(zip(sources, windows, strict=True)):
            name = self.mixture.sources[source]
            ids[row] = self.shards.window(name, int(window) * length, length + 1)
        return ids

    def _places(self, samples: Integers) -> tuple[Integers, Integers, Integers]:
        """[B] each: number of the source, epoch, window."""
        sources, ordinals = self.mixture.places(samples)
        counts = np.array(list(self.windows.values()), dtype=np.int64)[sources]
        epochs, positions = ordinals // counts, ordinals % counts
        windows = np.empty_like(positions)
        for source, epoch in set(zip(sources.tolist(), epochs.tolist(), strict=True)):
            of = (sources == source) & (epochs == epoch)
            name = self.mixture.sources[source]
            key = f"{self.settings.seed}\n{epoch}\n{name}"
            windows[of] = permuted(positions[of], self.windows[name], key)
        return sources, epochs, windows


def _weights(
    settings: BatchSettings, windows: Mapping[str, int], folder: str
) -> Mapping[str, float]:
    if settings.weights is None:
        return {source: max(count, 1) for source, count in windows.items()}
    for source in settings.weights:
        if source not in windows:
            raise ConfigError(
                f"weights: {folder} has no source '{source}'{did_you_mean(source, windows)}"
            )
    for source in windows:
        if source not in settings.weights:
            raise ConfigError(
                f"weights: nothing said of source '{source}' of {folder}; to leave it out, give it "
                f"the weight 0"
            )
    return settings.weights
