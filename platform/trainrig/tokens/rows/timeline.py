"""The map from a sample's number to its stage, its source and its row in that source.

Samples are numbered from 0 for the whole run. A stage (batch_stages.py) is a range of steps. A
segment is a range of samples within a stage in which the weights are constant: a whole stage, or
part of one if a source reaches its cap. Each segment records how many rows of each source precede
it in the stage. So any sample is found by one binary search among the segments and one table
lookup. Shapes: B samples of a call.

A `Mixture` assigns the samples of a segment to sources.
"""

import bisect
import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import ConfigError
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.batch_stages import StageSizes
from trainrig.tokens.rows.window_order import ReadPosition, SourceStage, WindowBlocks

# Slots of the mixture's table. Weights are rounded to hundred-thousandths, so that typical weights
# are exact; the table takes about a tenth of a second to build.
SLOTS = 100_000


class Mixture:
    """The source of each sample, given by a table of slots that repeats.

    If no source is owed samples from before, each source has its share of the first k samples, to
    within one sample, for every k. Otherwise the owed samples are repaid as early as possible, as
    long as no source gets a whole sample more than its share. The table then repeats after a lead
    of slots that occur only once. `spread_slots` states the guarantees.
    """

    def __init__(
        self, slots: Mapping[str, int], owed: Mapping[str, Fraction] | None = None
    ) -> None:
        """Build the table.

        `slots` is the number of slots of each source, at least 1. `owed` is the number of samples
        by which a source is behind its share at the start; each is above -1, and they sum to 0.
        """
        self.sources = tuple(slots)
        self.slots = tuple(slots.values())
        self._owed = tuple((owed or {}).get(source, Fraction(0)) for source in self.sources)
        self._table, self._lead = spread_slots(self.slots, self._owed)
        self._before = np.empty_like(self._table)  # earlier slots of the same source
        for number in range(len(self.slots)):
            is_source = self._table == number
            self._before[is_source] = np.arange(is_source.sum())

    @classmethod
    def from_weights(
        cls, weights: Mapping[str, float], owed: Mapping[str, Fraction] | None = None
    ) -> "Mixture":
        """Return the mixture closest to `weights`, which are at least 0 and not all 0.

        Whole numbers with a sum of at most SLOTS are met exactly, others to within 1 / SLOTS.
        Raises ConfigError for a weight too small for one slot.
        """
        exact = {source: Fraction(w) for source, w in sorted(weights.items()) if w > 0}
        total = sum(exact.values())
        if total > SLOTS or any(weight.denominator > 1 for weight in exact.values()):
            exact = {source: weight * SLOTS / total for source, weight in exact.items()}
            total = Fraction(SLOTS)
        # Largest remainders: round all down, then round up those that lost most.
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
        return cls({source: count // shortest for source, count in slots.items()}, owed)

    @property
    def shares(self) -> dict[str, float]:
        """Share of each source in the samples."""
        return {s: n / sum(self.slots) for s, n in zip(self.sources, self.slots, strict=True)}

    def find_places(self, samples: Integers) -> tuple[Integers, Integers]:
        """Return [B] the index of each sample's source, and [B] how many of its samples precede."""
        rounds = np.maximum(samples - self._lead, 0) // sum(self.slots)
        slot = samples - rounds * sum(self.slots)
        sources = self._table[slot].astype(np.int64)
        counts = np.array(self.slots, dtype=np.int64)[sources]
        return sources, rounds * counts + self._before[slot]

    def find_sample(self, source: str, ordinal: int) -> int:
        """Return the number of the sample that is sample `ordinal` (from 0) of `source`."""
        number = self.sources.index(source)
        slots = np.flatnonzero(self._table == number)
        in_lead = int((slots < self._lead).sum())
        rounds = max(0, ordinal - in_lead) // self.slots[number]
        return int(slots[ordinal - rounds * self.slots[number]]) + rounds * sum(self.slots)

    def count_samples(self, samples: int) -> dict[str, int]:
        """Return how many of the first `samples` samples are of each source."""
        rounds = max(0, samples - self._lead) // sum(self.slots)
        rest = np.bincount(
            self._table[: samples - rounds * sum(self.slots)], minlength=len(self.slots)
        )
        return {
            source: int(rest[number]) + rounds * self.slots[number]
            for number, source in enumerate(self.sources)
        }

    def compute_owed_after(self, samples: int) -> dict[str, Fraction]:
        """Return the samples by which each source is behind its share after `samples` samples."""
        counts = self.count_samples(samples)
        return {
            source: owed + Fraction(count * samples, sum(self.slots)) - counts[source]
            for source, count, owed in zip(self.sources, self.slots, self._owed, strict=True)
        }


def carry_over(owed: Mapping[str, Fraction], weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Return the owed samples with which a segment of `weights` begins.

    A source of weight 0 can neither receive nor give samples. Its balance is written off, and the
    same amount is written off from the balances of the opposite sign, in proportion. So balances
    only shrink, and the remaining ones sum to 0 again.
    """
    active = {source: owed.get(source, Fraction(0)) for source, w in weights.items() if w > 0}
    behind = sum((a for a in active.values() if a > 0), Fraction(0))
    ahead = -sum((a for a in active.values() if a < 0), Fraction(0))
    settled = min(behind, ahead)
    return {
        source: account * settled / (behind if account > 0 else ahead) if account else account
        for source, account in active.items()
    }


@functools.lru_cache(maxsize=64)
def spread_slots(
    slots: tuple[int, ...], owed: tuple[Fraction, ...]
) -> tuple[NDArray[np.int32], int]:
    """Return (table, lead): the source index of each slot, spread as evenly as possible.

    Source i gets `slots[i]` of each L = sum(slots) slots. The first `lead` slots occur once; the L
    slots after them repeat.

    Let E_i(k) = owed_i + k slots_i / L be the number of samples that source i should have before
    slot k. Its sample j (from 0) may take slot k once E_i(k + 1) > j, and is due before the first k
    with E_i(k) >= j + 1. Each slot goes to the source with the earliest due date among those that
    may take it; ties go to the lowest index. Because the E_i sum to k, there always is one. About
    the deviation |count - E|:

    - No source is ever a whole sample ahead of its share, because a source that may take the slot
      stays below E + 1. If balances are carried from segment to segment, this holds in all later
      segments too. The deviations sum to 0, so of n sources none is ever n - 1 samples behind. With
      two sources the deviation is always below 1.
    - If nothing is owed, all samples are on time: after every slot each source is within one sample
      of its share (Baruah, Cohen, Plaxton & Varvel 1996, "Proportionate progress"; Tijdeman 1980,
      "The chairman assignment problem", for the bounds when later weights are known).
    - If samples are owed, this holds again once every E_i(k) >= 0, after at most L slots: from then
      on, at most k samples are due before slot k.
    - Without knowing later weights, no method can always stay within one sample. Let half of n
      equal sources be 1/2 behind, and give weight to these alone until half of them are 1 behind,
      and so on: a deviation of log2(n) / 2 is reached.
    - Let m = L / min(slots): the longest time between the first slot a sample may take and the slot
      before which it is due. After 2 m slots the table repeats every L slots. For after m slots all
      samples are on time, as above. Two schedules of the same samples that differ in which are
      done differ by pairs of samples, and a pair disappears when its later sample is placed, within
      m slots. So the later slots do not depend on what was placed before.
    """
    length = sum(slots)
    scale = math.lcm(*(samples.denominator for samples in owed))
    debts = [int(samples * scale) for samples in owed]
    waiting = [
        (-debts[number] * length // (slots[number] * scale), number, 0)
        for number in range(len(slots))
    ]  # (first slot that it may take, source, j)
    heapq.heapify(waiting)
    urgent: list[tuple[int, int, int]] = []  # (slot before which it is due, source, j)
    table: list[int] = []
    lead = 2 * (length // min(slots) + 1) if any(debts) else 0
    for slot in range(lead + length):
        while waiting and waiting[0][0] <= slot:
            _, number, j = heapq.heappop(waiting)
            deadline = -(-((j + 1) * scale - debts[number]) * length // (slots[number] * scale))
            heapq.heappush(urgent, (deadline, number, j))
        _, number, j = heapq.heappop(urgent)
        table.append(number)
        release = ((j + 1) * scale - debts[number]) * length // (slots[number] * scale)
        heapq.heappush(waiting, (release, number, j + 1))
    return np.array(table, dtype=np.int32), lead


@dataclass(frozen=True)
class Segment:
    """A range of samples of one stage, from `first` on, with constant weights."""

    first: int  # number of the first sample
    stage: int
    mixture: Mixture
    before: Mapping[str, int]  # rows of each source that the stage reads before this segment


@dataclass(frozen=True)
class Places:
    """The sources and rows of some samples, all of the same stage."""

    stage: int
    sources: Integers  # [B] index in the timeline's `sources`
    ordinals: Integers  # [B] number of the row among the source's rows of the stage


class Timeline:
    """The stages and segments of a run."""

    def __init__(
        self,
        stages: Sequence[StageSizes],
        weights: Sequence[Mapping[str, float]],
        sources: Sequence[str],
        blocks: Mapping[str, WindowBlocks],
        base_length: int,
        caps: Mapping[str, float],
    ) -> None:
        """Compute the segments of all stages.

        `weights` has the weights of each stage, `blocks` the windows of each source that is ever
        read. A source is left out once it has been read for its entry of `caps`, in epochs; without
        an entry it is never left out. Raises ConfigError for a weight too small to be represented.
        """
        self.stages = tuple(stages)
        self.sources = tuple(sources)
        # First sample at which all sources of its stage have reached their caps; None: never.
        self.end: int | None = None
        self.segments: list[Segment] = []
        self._source_stages: list[dict[str, SourceStage]] = []  # one for each stage up to `end`
        self._caps = caps
        self._weights = tuple(weights)
        self._numbers = {source: number for number, source in enumerate(self.sources)}
        progress = {source: ReadPosition.at(windows, 0, 0) for source, windows in blocks.items()}
        owed: Mapping[str, Fraction] = {}
        for number, stage in enumerate(stages):
            span = stage.sequence_length // base_length
            source_stages = {s: SourceStage(b, span, progress[s]) for s, b in blocks.items()}
            self._source_stages.append(source_stages)
            past = stages[number + 1].first_sample if number + 1 < len(stages) else None
            rows, owed = self._append_segments(number, weights[number], owed, past)
            if self.end is not None:
                break
            progress = {
                source: source_stages[source].find_position_after(n) for source, n in rows.items()
            }
        self._firsts = [segment.first for segment in self.segments]

    def _append_segments(
        self,
        stage: int,
        weights: Mapping[str, float],
        owed: Mapping[str, Fraction],
        past: int | None,
    ) -> tuple[dict[str, int], Mapping[str, Fraction]]:
        """Append the segments of one stage, which ends before sample `past`.

        Returns the number of rows of each source in the stage, and the samples that each source is
        owed at its end.
        """
        source_stages = self._source_stages[stage]
        limits = {s: source_stages[s].count_rows_within(cap) for s, cap in self._caps.items()}
        rows = dict.fromkeys(source_stages, 0)
        first = self.stages[stage].first_sample
        while True:
            left = {s: w for s, w in weights.items() if w > 0 and limits.get(s) != rows[s]}
            if not left:
                self.end = first
                return rows, owed
            mixture = Mixture.from_weights(left, carry_over(owed, left))
            self.segments.append(Segment(first, stage, mixture, dict(rows)))
            ends = [
                first + mixture.find_sample(source, limit - rows[source])
                for source in left
                if (limit := limits.get(source)) is not None
            ]
            end = min([*ends, past if past is not None else math.inf])
            if not math.isfinite(end):
                return rows, owed
            count = int(end) - first
            for source, number in mixture.count_samples(count).items():
                rows[source] += number
            owed = mixture.compute_owed_after(count)
            if end == past:
                return rows, owed
            first = int(end)

    def find_stage(self, step: int) -> StageSizes:
        """Return the stage of `step`."""
        starts = [stage.from_step for stage in self.stages]
        return self.stages[bisect.bisect_right(starts, step) - 1]

    def find_first_sample(self, step: int) -> int:
        """Return the number of the first sample of `step`."""
        if step < 0:
            raise ValueError(f"there is no step {step}")
        stage = self.find_stage(step)
        return stage.first_sample + (step - stage.from_step) * stage.global_batch

    def find_step(self, sample: int) -> int:
        """Return the step of `sample`."""
        starts = [stage.first_sample for stage in self.stages]
        stage = self.stages[bisect.bisect_right(starts, sample) - 1]
        return stage.from_step + (sample - stage.first_sample) // stage.global_batch

    def find_places(self, samples: Integers) -> Places:
        """Return the source and row of each of `samples`, which are consecutive, of one step.

        Raises ConfigError if the data ends before the last of them.
        """
        if self.end is not None and samples[-1] >= self.end:
            raise ConfigError(
                f"batches: {self.describe_last_read()} are used up after "
                f"{self.find_step(self.end)} whole steps; train for no more, or raise `epochs`"
            )
        sources = np.empty_like(samples)
        ordinals = np.empty_like(samples)
        first = bisect.bisect_right(self._firsts, int(samples[0])) - 1
        last = bisect.bisect_right(self._firsts, int(samples[-1])) - 1
        for number in range(first, last + 1):
            segment = self.segments[number]
            past = self._firsts[number + 1] if number < last else math.inf
            in_segment = (samples >= segment.first) & (samples < past)
            chosen, counted = segment.mixture.find_places(samples[in_segment] - segment.first)
            names = segment.mixture.sources
            sources[in_segment] = np.array([self._numbers[name] for name in names])[chosen]
            ordinals[in_segment] = (
                np.array([segment.before[name] for name in names])[chosen] + counted
            )
        return Places(self.segments[last].stage, sources, ordinals)

    def describe_last_read(self) -> str:
        """Return a description of the sources that are used up at the end, for messages."""
        stage = len(self._source_stages) - 1
        names = [source for source, weight in self._weights[stage].items() if weight > 0]
        return (
            f"all sources with weight in the stage from step {self.stages[stage].from_step} "
            f"({', '.join(sorted(names))})"
        )

    def find_source_stage(self, stage: int, source: str) -> SourceStage:
        """Return the rows of `source` in a stage."""
        return self._source_stages[stage][source]

    def count_epochs_read(self, samples: int) -> dict[str, float]:
        """Return the epochs of each source that the first `samples` samples read."""
        if samples == 0:
            return dict.fromkeys(self._source_stages[0], 0.0)
        number = bisect.bisect_right(self._firsts, samples - 1) - 1
        segment = self.segments[number]
        counts = segment.mixture.count_samples(samples - segment.first)
        return {
            source: source_stage.count_windows_after(segment.before[source] + counts.get(source, 0))
            / source_stage.blocks.windows
            for source, source_stage in self._source_stages[segment.stage].items()
        }

    def find_first_beyond(self, source: str, epochs: float) -> int:
        """Return the first sample with which `source` exceeds `epochs` epochs.

        Call it only if `count_epochs_read` says that the run exceeds `epochs`.
        """
        for number, segment in enumerate(self.segments):
            limit = self.find_source_stage(segment.stage, source).count_rows_within(epochs)
            assert limit is not None, f"{source}: no number of samples is beyond {epochs} epochs"
            if source not in segment.mixture.sources:
                continue
            place = max(limit - segment.before[source], 0)
            found = segment.first + segment.mixture.find_sample(source, place)
            if number + 1 == len(self.segments) or found < self._firsts[number + 1]:
                return found
        raise ValueError(f"{source}: never beyond {epochs} epochs")

    def describe_segments(self, samples: int) -> list[dict[str, Any]]:
        """Return a description of the first `samples` samples: a JSON table for each segment."""
        return [
            {
                "first_sample": segment.first,
                "sequence_length": self.stages[segment.stage].sequence_length,
                "slots": dict(zip(segment.mixture.sources, segment.mixture.slots, strict=True)),
            }
            for segment in self.segments
            if segment.first < samples
        ]
