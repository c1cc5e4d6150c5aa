"""Run-file settings for the batches of pretraining, and their stages."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import field_validator, model_validator

from trainrig.config import EXTENDABLE, Field, Settings
from trainrig.tokens.batches import BatchSizes, check_divides
from trainrig.tokens.rows.packing import Concatenate, Packing

# Up to 4 epochs of a source train nearly as well as the same number of new tokens (Muennighoff et
# al. 2023, "Scaling Data-Constrained Language Models", arXiv:2305.16264, section 6).
EPOCHS = 4.0

Weights = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
Cap = Annotated[float, Field(gt=0)]  # infinity: no cap


class BatchStage(Settings):
    """Changes to the batches from a step on; keys that are absent keep their earlier values."""

    from_step: int = Field(ge=1)  # first step with these batches, counted from 0
    weights: Weights | None = None  # share of each source from this step on; None: unchanged
    # Tokens in a sequence from this step on; None: unchanged.
    sequence_length: int | None = Field(default=None, ge=1)
    # Sequences in a step (the global batch) from this step on; None: unchanged.
    global_batch: int | None = Field(default=None, ge=1)
    # Sequences in one forward pass (the micro-batch) from this step on; None: unchanged.
    micro_batch: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_any_weight(self) -> Self:
        _check_weights(self.weights)
        return self


class BatchRamp(Settings):
    """Growth of the global batch, in equal increments, at the start of the run.

    The noise of early updates does not justify full batches (GPT-3, arXiv:2005.14165, section 2.3).
    """

    start: int = Field(ge=1)  # sequences in the first step
    # Sequences that are added at a time; a multiple of micro_batch.
    increment: int = Field(ge=1)
    steps: int = Field(ge=1)  # first step whose batch has `global_batch` sequences

    def iterate_sizes(self, full: int) -> Iterator[tuple[int, int]]:
        """Yield (step, sequences) for each step at which the batch grows, up to size `full`."""
        rises = (full - self.start) // self.increment
        for rise in range(1, rises + 1):
            yield rise * self.steps // rises, self.start + rise * self.increment

    def check(self, full: int, micro_batch: int) -> None:
        """Raise ValueError unless the ramp reaches `full` in multiples of `micro_batch`."""
        if self.start >= full or (full - self.start) % self.increment:
            raise ValueError(
                f"ramp: start ({self.start}) cannot reach global_batch ({full}) in increments of "
                f"{self.increment}; the difference must be a positive multiple of increment"
            )
        if self.start % micro_batch or self.increment % micro_batch:
            raise ValueError(
                f"ramp: start ({self.start}) and increment ({self.increment}) must be multiples of "
                f"micro_batch ({micro_batch})"
            )
        rises = (full - self.start) // self.increment
        if rises > self.steps:
            raise ValueError(
                f"ramp: {rises} increments do not fit in {self.steps} steps; set steps to {rises} "
                "or more, or use a larger increment"
            )


@dataclass(frozen=True)
class StageSizes:
    """The values of one stage, with all defaults resolved."""

    from_step: int
    first_sample: int
    weights: Mapping[str, float] | None
    sequence_length: int
    global_batch: int
    micro_batch: int


class BatchSettings(BatchSizes):
    """Settings for the batches of pretraining: rows of token shards, mixed by source."""

    # Share of each source in the samples, in any unit; None: in proportion to the sources' sizes,
    # with which all sources begin each epoch at the same time.
    weights: Weights | None = None
    packing: Packing = Concatenate()  # how documents are combined into rows
    # Tokens that a token attends to. "window": all earlier tokens of its row, across the ends of
    # documents (GPT-3, arXiv:2005.14165, section 2.2). "document": only its own document, with
    # positions counted from 0 in each row (Llama 3, arXiv:2407.21783, section 3.2).
    attend: Literal["window", "document"] = "window"
    # Maximum number of epochs of a source, which may be a fraction: one number for all sources, or
    # a table with a number for each source.
    epochs: Cap | dict[str, Cap] = EPOCHS
    # Treatment of a source that reaches its maximum. "error": a run that needs more than `epochs`
    # is refused before it starts. "renormalise": the source gets weight 0 from there on, and the
    # other sources share the samples.
    when_exhausted: Literal["error", "renormalise"] = "error"
    # Changes of weights or sizes at a step. Stages that an unfinished run has not reached may
    # still be edited.
    stages: Annotated[tuple[BatchStage, ...], EXTENDABLE] = ()
    # Growth of the global batch at the start of the run; None: full size from the first step on.
    ramp: BatchRamp | None = None
    # Length, in tokens, of the windows that sources are cut into; None: the shortest length of all
    # stages. Every `sequence_length` must be a multiple of it. Set it if stages that you add later
    # may have shorter sequences.
    base_sequence_length: int | None = Field(default=None, ge=1)
    # Length, in tokens, up to which adjacent windows are kept together; None: the longest length of
    # all stages. Every `sequence_length` must divide it. Set it if stages that you add later may
    # have longer sequences.
    longest_sequence_length: int | None = Field(default=None, ge=1)

    @field_validator("epochs", mode="before")
    @classmethod
    def _check_cap_types(cls, given: Any) -> Any:
        """Check caps before pydantic does, whose message for a union names each member's error."""
        for source, cap in given.items() if isinstance(given, Mapping) else [("", given)]:
            if not isinstance(cap, int | float) or isinstance(cap, bool) or not cap > 0:
                subject = f"of '{source}' " if source else ""
                table = "" if source else ", or a table of numbers by source"
                raise ValueError(
                    f"{subject}should be a number greater than 0{table}, found {cap!r}"
                )
        return given

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        _check_weights(self.weights)
        for earlier, later in itertools.pairwise((0, *(s.from_step for s in self.stages))):
            if later <= earlier:
                raise ValueError(
                    f"stages: from_step {later} follows from_step {earlier}; list stages in "
                    "ascending order of from_step"
                )
        if self.ramp:
            self.ramp.check(self.global_batch, self.micro_batch)
            for given in self.stages:
                if given.from_step < self.ramp.steps and (given.global_batch or given.micro_batch):
                    raise ValueError(
                        f"stages: the stage from step {given.from_step} sets the batch size during "
                        f"the ramp; begin it at step {self.ramp.steps}, or leave ramp out"
                    )
        for stage in self.resolve_stages():
            try:
                check_divides(stage.global_batch, stage.micro_batch)
            except ValueError as error:
                raise ValueError(f"from step {stage.from_step}: {error}") from None
        _check_lengths(set(self._iterate_lengths()), self.base_length, self.longest_length)
        if self.longest_length > self.base_length and self.packing.kind != "Concatenate":
            raise ValueError(
                f"packing {self.packing.kind} has one plan for each length, so sequences cannot "
                f"grow from {self.base_length} to {self.longest_length} within a run; use one "
                "sequence_length, or packing Concatenate"
            )
        return self

    @property
    def base_length(self) -> int:
        """Length, in tokens, of the windows that sources are cut into."""
        return self.base_sequence_length or min(self._iterate_lengths())

    @property
    def longest_length(self) -> int:
        """Length, in tokens, of the longest sequences that the order of windows allows."""
        return self.longest_sequence_length or max(self._iterate_lengths())

    def _iterate_lengths(self) -> Iterator[int]:
        yield self.sequence_length
        yield from (stage.sequence_length for stage in self.stages if stage.sequence_length)

    def resolve_stages(self) -> tuple[StageSizes, ...]:
        """Return all stages with their values resolved; the first has the base settings."""
        first = self.ramp.start if self.ramp else self.global_batch
        last = StageSizes(0, 0, self.weights, self.sequence_length, first, self.micro_batch)
        found = [last]
        for stage in self._merge_ramp():
            steps = stage.from_step - last.from_step
            last = StageSizes(
                from_step=stage.from_step,
                first_sample=last.first_sample + steps * last.global_batch,
                weights=last.weights if stage.weights is None else stage.weights,
                sequence_length=stage.sequence_length or last.sequence_length,
                global_batch=stage.global_batch or last.global_batch,
                micro_batch=stage.micro_batch or last.micro_batch,
            )
            found.append(last)
        return tuple(found)

    def _merge_ramp(self) -> list[BatchStage]:
        """Return `stages` merged with the ramp's stages, in the order of their steps."""
        if self.ramp is None:
            return list(self.stages)
        by_step = {stage.from_step: stage for stage in self.stages}
        for step, size in self.ramp.iterate_sizes(self.global_batch):
            stage = by_step.get(step, BatchStage(from_step=step))
            size = stage.global_batch or size  # a stage at the ramp's last step may change the size
            by_step[step] = stage.model_copy(update={"global_batch": size})
        return [by_step[step] for step in sorted(by_step)]

    def count_positions(self, steps: int) -> int:
        """Return the number of positions in all rows of the first `steps` steps."""
        stages = self.resolve_stages()
        ends = [*(stage.from_step for stage in stages[1:]), steps]
        return sum(
            max(0, min(end, steps) - stage.from_step) * stage.global_batch * stage.sequence_length
            for stage, end in zip(stages, ends, strict=True)
        )

    def cap(self, source: str) -> float:
        """Return the maximum number of epochs of `source`."""
        return self.epochs.get(source, EPOCHS) if isinstance(self.epochs, dict) else self.epochs


def _check_weights(weights: Weights | None) -> None:
    if weights is not None and not any(weights.values()):
        raise ValueError("weights: no weight is above 0; set one, or leave weights out")


def _check_lengths(lengths: set[int], base: int, longest: int) -> None:
    for length in sorted(lengths):
        if length % base:
            raise ValueError(
                f"sequence_length {length} is not a multiple of the base window of {base} tokens; "
                f"the nearest above: {length - length % base + base}. Or set base_sequence_length "
                "to a number that divides all of them"
            )
    for length in sorted(lengths):
        if longest % length:
            raise ValueError(
                f"longest_sequence_length ({longest}) is not a multiple of sequence_length "
                f"{length}; the nearest above: {longest - longest % length + length}"
            )
