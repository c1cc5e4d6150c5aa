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
import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from trainrig.config import Field, Settings, did_you_mean
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.shards import IndexedDocument, TokenShards

IGNORE = -100  # a target that is not trained on

# Slots of the mixture's table. Weights are rounded to hundred-thousandths, so those that people
# write down are exact, and the table takes about a tenth of a second to build.
SLOTS = 100_000

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass sees; the unit that no number of workers changes."""

    ids: Integers  # [B, T]
    targets: Integers  # [B, T], IGNORE where not trained on
    samples: Integers  # [B] global sample numbers, the keys of RNG and trace


class Batches(Protocol):
    """Where a training loop has its batches from."""

    def at(self, step: int) -> tuple[MicroBatch, ...]:
        """The whole global batch of `step`: a pure function, the same for every worker count."""
        ...


def local(batch: Sequence[MicroBatch], rank: int, world: int) -> list[tuple[MicroBatch, bool]]:
    """The micro-batches of worker `rank` out of `world`, each with whether it is real.

    Workers take neighbouring micro-batches. All have the same number of rounds, so that all join
    every collective; one that lacks a micro-batch repeats another, whose result it drops.
    """
    if not 0 <= rank < world:
        raise ValueError(f"no rank {rank} among {world} workers")
    begin, end = len(batch) * rank // world, len(batch) * (rank + 1) // world
    rounds = math.ceil(len(batch) / world)
    real = [(micro_batch, True) for micro_batch in batch[begin:end]]
    return real + [(batch[0], False)] * (rounds - len(real))


class BatchSizes(Settings):
    """How many sequences make up the batch of each step, how long, and in what order."""

    sequence_length: int = Field(ge=1)  # T, tokens
    global_batch: int = Field(ge=1)  # sequences a step, over all workers
    micro_batch: int = Field(ge=1)  # sequences of one forward pass
    seed: int = 0  # of the order

    @model_validator(mode="after")
    def _divides(self) -> Self:
        rest = self.global_batch % self.micro_batch
        if rest:
            above = self.global_batch + self.micro_batch - rest
            raise ValueError(
                f"global_batch ({self.global_batch} sequences) is not a multiple of micro_batch "
                f"({self.micro_batch}); the nearest above: {above}"
            )
        return self


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


class Mixture:
    """Which source each sample is of: a table of slots, repeated for ever.

    After any number k of samples, each source has had its share of k to within one sample.
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        """`slots`: how many of the table's slots each source gets, at least 1."""
        self.sources = tuple(slots)
        self.slots = tuple(slots.values())
        self._table = _spread(self.slots)
        self._before = np.empty(len(self._table), dtype=np.int64)  # slots of the same source
        for number, count in enumerate(self.slots):
            self._before[self._table == number] = np.arange(count)

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> "Mixture":
        """The mixture nearest to `weights`, which are at least 0 and not all 0.

        Whole numbers that sum to at most SLOTS are met exactly, others to within 1 / SLOTS. Raises
        ConfigError for a weight too small for one slot.
        """
        exact = {source: Fraction(w) for source, w in sorted(weights.items()) if w > 0}
        total = sum(exact.values())
        if total > SLOTS or any(weight.denominator > 1 for weight in exact.values()):
            exact = {source: weight * SLOTS / total for source, weight in exact.items()}
            total = Fraction(SLOTS)
        # Largest remainders: round all down, then those up that lost most.
        slots = {source: math.floor(share) for source, share in exact.items()}
        by_loss = sorted(exact, key=lambda source: slots[source] - exact[source])
        for source in by_loss[: int(total) - sum(slots.values())]:
            slots[source] += 1
        for source, count in slots.items():
            if count == 0:
                share = float(exact[source] / SLOTS)
                raise ConfigError(
                    f"weights: source '{source}' would be {share:.1e} of the samples; give it at "
                    f"least {1 / SLOTS:.0e} of the sum, or 0"
                )
        shortest = math.gcd(*slots.values())
        return cls({source: count // shortest for source, count in slots.items()})

    @property
    def shares(self) -> dict[str, float]:
        """The share of the samples that each source has."""
        return {s: n / len(self._table) for s, n in zip(self.sources, self.slots, strict=True)}

    def places(self, samples: Integers) -> tuple[Integers, Integers]:
        """[B] each: the number of the sample's source, and how many of that source came before."""
        rounds, slot = np.divmod(samples, len(self._table))
        sources = self._table[slot]
        counts = np.array(self.slots, dtype=np.int64)[sources]
        return sources, rounds * counts + self._before[slot]


def _spread(slots: Sequence[int]) -> Integers:
    """A table in which number i stands `slots[i]` times, as evenly as can be.

    Of L slots, the j-th of a source's n may stand from slot floor(jL/n) on and must before slot
    ceil((j+1)L/n): then every prefix is within one of each share. Such a table always exists
    (Baruah, Cohen, Plaxton & Varvel 1996, "Proportionate progress"), and giving each slot to the
    most urgent source that may have it finds one.
    """
    length = sum(slots)
    table = np.empty(length, dtype=np.int64)
    waiting = [(0, number, 0) for number in range(len(slots))]  # (from slot, source, j)
    urgent: list[tuple[int, int, int]] = []  # (before slot, source, j)
    for slot in range(length):
        while waiting and waiting[0][0] <= slot:
            _, number, j = heapq.heappop(waiting)
            deadline = -(-(j + 1) * length // slots[number])
            heapq.heappush(urgent, (deadline, number, j))
        _, number, j = heapq.heappop(urgent)
        table[slot] = number
        if j + 1 < slots[number]:
            heapq.heappush(waiting, ((j + 1) * length // slots[number], number, j + 1))
    return table


# Of the Feistel network. Four good round functions would do (Luby & Rackoff 1988); hashes as quick
# as these want a margin.
ROUNDS = 8


def permuted(index: Integers, size: int, key: str) -> Integers:
    """Where the permutation of 0..size-1 that `key` picks takes each of `index`.

    A Feistel network permutes the next even number of bits; a result of `size` or more is put
    through again until it falls below (cycle-walking: Black & Rogaway 2002), at most four times on
    average. No table, so the order of 10^12 windows costs nothing to hold.
    """
    half_bits = np.uint64(max(1, math.ceil((size - 1).bit_length() / 2)))
    digest = hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    result = _feistel(index.astype(np.uint64), half_bits, round_keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], half_bits, round_keys)
    return result.astype(np.int64)


def _feistel(index: Words, half_bits: np.uint64, round_keys: Words) -> Words:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = index >> half_bits, index & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mixed(right ^ round_key) & mask)
    return (left << half_bits) | right


def _mixed(words: Words) -> Words:
    """Each word scrambled, so that every bit of it counts (the finaliser of SplitMix64: Steele, Lea
    & Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
