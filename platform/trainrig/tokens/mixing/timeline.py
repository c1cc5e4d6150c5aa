"""Which stage, which source, and which row of it every sample of a run is.

Samples are numbered from 0 for the whole run. A stage (stages.py) holds from one step to another; a
segment is a stretch of samples of one stage with constant weights: a whole stage, or more of them
where a source reaches its cap. For each segment there is on record how many rows of each source
came before it, so any sample is found by one search among the segments and one look into a table.

Shapes: B samples asked about.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from trainrig.errors import ConfigError
from trainrig.tokens.mixing.mixture import Mixture, carry_over
from trainrig.tokens.mixing.stages import StageSizes
from trainrig.tokens.mixing.window_order import ReadPosition, SourceStage, WindowBlocks
from trainrig.tokens.permutation import Integers


@dataclass(frozen=True)
class Segment:
    """Samples of one stage, from `first` on, with constant weights."""

    first: int  # sample
    stage: int
    mixture: Mixture
    before: Mapping[str, int]  # rows of each source in this stage before this segment


@dataclass(frozen=True)
class Places:
    """What some samples, all of one stage, are."""

    stage: int
    sources: Integers  # [B] numbers in the timeline's `sources`
    ordinals: Integers  # [B] row of the source in this stage


class Timeline:
    """All stages and segments of a run."""

    def __init__(
        self,
        stages: Sequence[StageSizes],
        weights: Sequence[Mapping[str, float]],
        sources: Sequence[str],
        blocks: Mapping[str, WindowBlocks],
        base_length: int,
        caps: Mapping[str, float],
    ) -> None:
        """`weights`: of each stage. `blocks`: of all of `sources` that are ever read. `caps`:
        epochs after which a source is left out; no entry: never.

        Raises ConfigError for a weight too small to follow.
        """
        self.stages = tuple(stages)
        self.sources = tuple(sources)
        # The sample from which on no source that its stage reads has anything left.
        self.end: int | None = None
        self.segments: list[Segment] = []
        self._source_stages: list[dict[str, SourceStage]] = []  # of the stages up to the end
        self._caps = caps
        self._weights = tuple(weights)
        self._numbers = {source: number for number, source in enumerate(self.sources)}
        progress = {source: ReadPosition.at(each, 0, 0) for source, each in blocks.items()}
        owed: Mapping[str, Fraction] = {}
        for number, stage in enumerate(stages):
            span = stage.sequence_length // base_length
            source_stages = {s: SourceStage(each, span, progress[s]) for s, each in blocks.items()}
            self._source_stages.append(source_stages)
            past = stages[number + 1].first_sample if number + 1 < len(stages) else None
            rows, owed = self._divide(number, weights[number], owed, past)
            if self.end is not None:
                break
            progress = {
                source: source_stages[source].find_position_after(n) for source, n in rows.items()
            }
        self._firsts = [segment.first for segment in self.segments]

    def _divide(
        self,
        stage: int,
        weights: Mapping[str, float],
        owed: Mapping[str, Fraction],
        past: int | None,
    ) -> tuple[dict[str, int], Mapping[str, Fraction]]:
        """Lay out the segments of one stage, which ends before sample `past`; rows of each source
        in it, and what each is owed after it."""
        source_stages = self._source_stages[stage]
        limits = {s: source_stages[s].count_rows_within(cap) for s, cap in self._caps.items()}
        rows = dict.fromkeys(source_stages, 0)
        first = self.stages[stage].first_sample
        while True:
            left = {s: w for s, w in weights.items() if w > 0 and limits.get(s) != rows[s]}
            if not left:
                self.end = first
                return rows, owed
            mixture = Mixture.of(left, carry_over(owed, left))
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
        """The stage that `step` is in."""
        starts = [stage.from_step for stage in self.stages]
        return self.stages[bisect.bisect_right(starts, step) - 1]

    def find_first_sample(self, step: int) -> int:
        """The first sample of `step`: as many samples come before it."""
        if step < 0:
            raise ValueError(f"there is no step {step}")
        stage = self.find_stage(step)
        return stage.first_sample + (step - stage.from_step) * stage.global_batch

    def find_step(self, sample: int) -> int:
        """The step that `sample` is in."""
        starts = [stage.first_sample for stage in self.stages]
        stage = self.stages[bisect.bisect_right(starts, sample) - 1]
        return stage.from_step + (sample - stage.first_sample) // stage.global_batch

    def find_places(self, samples: Integers) -> Places:
        """What neighbouring `samples` of one step are. Raises ConfigError past the end of data."""
        if self.end is not None and samples[-1] >= self.end:
            raise ConfigError(
                f"batches: {self.describe_last_read()} are used up after "
                f"{self.find_step(self.end)} whole steps; train for no more, or raise `epochs`"
            )
        sources, ordinals = np.empty_like(samples), np.empty_like(samples)
        first = bisect.bisect_right(self._firsts, int(samples[0])) - 1
        last = bisect.bisect_right(self._firsts, int(samples[-1])) - 1
        for number in range(first, last + 1):
            segment = self.segments[number]
            past = self._firsts[number + 1] if number < last else math.inf
            of = (samples >= segment.first) & (samples < past)
            chosen, counted = segment.mixture.find_places(samples[of] - segment.first)
            names = segment.mixture.sources
            sources[of] = np.array([self._numbers[name] for name in names])[chosen]
            ordinals[of] = np.array([segment.before[name] for name in names])[chosen] + counted
        return Places(self.segments[last].stage, sources, ordinals)

    def describe_last_read(self) -> str:
        """Which sources have nothing left at the end, in words."""
        stage = len(self._source_stages) - 1
        names = [source for source, weight in self._weights[stage].items() if weight > 0]
        return (
            f"all sources with weight in the stage from step {self.stages[stage].from_step} "
            f"({', '.join(sorted(names))})"
        )

    def find_source_stage(self, stage: int, source: str) -> SourceStage:
        """The rows of `source` in a stage."""
        return self._source_stages[stage][source]

    def count_epochs_read(self, samples: int) -> dict[str, float]:
        """How many epochs of each source the first `samples` samples make."""
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
        """The first sample that would take `source` beyond so many epochs.

        There has to be one: ask only when `count_epochs_read` says so.
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
        """What the first `samples` samples are made of, as plain JSON: a table for each segment."""
        return [
            {
                "first_sample": segment.first,
                "sequence_length": self.stages[segment.stage].sequence_length,
                "slots": dict(zip(segment.mixture.sources, segment.mixture.slots, strict=True)),
            }
            for segment in self.segments
            if segment.first < samples
        ]
