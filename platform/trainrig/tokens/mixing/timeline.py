"""The map from a sample's number to its stage, its source and its row in that source.

Samples are numbered from 0 for the whole run. A stage (stages.py) is a range of steps. A segment is
a range of samples within a stage in which the weights are constant: a whole stage, or part of one
if a source reaches its cap. Each segment records how many rows of each source precede it in the
stage. So any sample is found by one binary search among the segments and one table lookup.

Shapes: B samples of a call.
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
