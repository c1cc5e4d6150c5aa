"""Mixture of several objectives in one run: each sample is assigned to one of them by weight.

As in Tay et al. 2022, "UL2", arXiv:2205.05131, section 3.1. The objective of a sample is drawn by
its number, so it is the same at any number of workers. A text gets a new sample number, and so a
new draw, in each epoch. The loss is the mean over the targets of the global batch, whatever their
objectives: an objective's influence depends on its number of samples and on its number of targets
in each.

If objectives make rows of different widths from the same text, all samples of a micro-batch get one
objective, drawn by the number of the first sample. No row is then padded to the width of another
objective, and no text is dropped to equalize widths.

A *member* is one of the objectives. Each row holds one sample.

Shapes: B rows of a micro-batch, T positions of a row, R samples of a micro-batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from trainrig.config import Settings
from trainrig.config.field_marks import FitsSeveral
from trainrig.objectives.denoising.fill_in_the_middle import FillInTheMiddle
from trainrig.objectives.denoising.masked import MaskedLM
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.denoising.span_corruption import SpanCorruption, SpansLeftOut
from trainrig.objectives.next_token import CROSS_ENTROPY, CausalLM
from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    Corrupting,
    DeviceBatch,
    LengthLimited,
    Output,
)
from trainrig.objectives.objective_settings import NO_AXES, Axis, ObjectiveSettings
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn

MEMBERS = "members"  # name of the array [B] with the number of each row's member
# The metric of this name plus the member's name is the mean loss over the member's targets.
MEMBER_LOSS = "loss/"

# Objectives that can be members.
MemberObjective = Annotated[
    CausalLM | FillInTheMiddle | MaskedLM | PrefixLM | SpanCorruption,
    Field(discriminator="kind"),
    FitsSeveral(),
]


class MixtureMember(Settings):
    """One objective of a mixture."""

    objective: MemberObjective  # objective of the samples that are assigned to this member
    # Weight of the member: its share of samples is this over the sum of all weights.
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # name in metrics; None: the objective's kind
    name: str | None = Field(default=None, min_length=1)

    @field_validator("objective", mode="before")
    @classmethod
    def _check_kind(cls, given: Any) -> Any:
        kind = given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)
        if reason := _find_unmixable().get(kind):
            raise ValueError(f"{kind} cannot be a member of a mixture: {reason}")
        return given

    @property
    def called(self) -> str:
        """The name of the member in metrics."""
        return self.objective.kind if self.name is None else self.name


def _find_unmixable() -> dict[str | None, str]:
    """Return why objectives cannot be members, by kind."""
    return {
        objective.__name__: objective.unmixable
        for objective in _list_subclasses(ObjectiveSettings)
        if objective.unmixable is not None
    }


def _list_subclasses(of: type[ObjectiveSettings]) -> Iterator[type[ObjectiveSettings]]:
    for objective in of.__subclasses__():
        yield objective
        yield from _list_subclasses(objective)


@dataclass(frozen=True)
class NamedObjective:
    """A member, from the settings of any kind of mixture."""

    name: str  # name in metrics
    weight: float  # share of samples, relative to the sum of all weights
    objective: MemberObjective


class MixtureBase(CausalLM):
    """Base of mixtures: cross-entropy of several objectives, one for each sample."""

    axes: ClassVar[frozenset[Axis]] = NO_AXES

    mixture_seed: int = 0  # random seed for the assignment of samples
    # Whether objectives are drawn for each sample or for a whole micro-batch. A whole micro-batch
    # avoids padding where objectives make rows of different widths. None: a whole micro-batch if
    # widths differ, else each sample.
    deal: Literal["sample", "micro_batch"] | None = None

    @abstractmethod
    def list_named(self) -> tuple[NamedObjective, ...]:
        """Return the members of the mixture."""

    def parts(self) -> tuple[tuple[float, CausalLM], ...]:
        """Return the objectives of the mixture, each with its share of the samples."""
        whole = sum(member.weight for member in self.list_named())
        return tuple((member.weight / whole, member.objective) for member in self.list_named())

    @property
    def one_per_micro_batch(self) -> bool:
        """True if all samples of a micro-batch get the same objective."""
        if self.deal is not None:
            return self.deal == "micro_batch"
        return len({member.objective.row_shape for member in self.list_named()}) > 1

    def make_corruption(self, encoder: Encoder) -> MixtureCorruption:
        """Return the corruption that assigns rows to members and applies the corruption of each.

        Raises DataError if the tokenizer lacks what one of them needs.
        """
        return MixtureCorruption(
            kind=self.kind,
            names=tuple(member.name for member in self.list_named()),
            shares=tuple(share for share, _ in self.parts()),
            corruptions=tuple(
                member.objective.make_corruption(encoder)
                if isinstance(member.objective, Corrupting)
                else None
                for member in self.list_named()
            ),
            seed=self.mixture_seed,
            by_micro_batch=self.one_per_micro_batch,
            padding=encoder.special_tokens.padding,
        )

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """Return the model output for `batch`; its logits predict each position's target."""
        arrays = batch.arrays
        if batches.DECODER_IDS in arrays:
            return SpanCorruption.predict(self, model, batch)  # type: ignore[arg-type]
        if batches.PREFIXES in arrays:
            return PrefixLM.predict(self, model, batch)  # type: ignore[arg-type]
        return super().predict(model, batch)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy of each target of `batch`, and each member's mean loss."""
        computed = super().compute(model, batch, statistics)
        found = computed.terms[CROSS_ENTROPY]
        rows_B = found.sum_rows_B()
        members_B = batch.arrays[MEMBERS]
        losses = {}
        for number, member in enumerate(self.list_named()):
            mine_B = members_B == number
            losses[MEMBER_LOSS + member.name] = Contributions(
                rows_B * mine_B, found.counts_B * mine_B
            )
        return replace(computed, diagnostics=losses)


class MixtureOfObjectives(MixtureBase):
    """Cross-entropy of several objectives, averaged over all targets of the global batch.

    Each sample is assigned to one objective.
    """

    kind: Literal["MixtureOfObjectives"] = "MixtureOfObjectives"  # type: ignore[assignment]  # not the base class's kind
    # objectives of the mixture, with their weights
    members: tuple[MixtureMember, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        name, count = Counter(member.called for member in self.members).most_common(1)[0]
        if count > 1:
            raise ValueError(f"members: {count} have the name {name!r}; give each its own `name`")
        for member in self.members:
            if member.objective.z_loss or member.objective.label_smoothing:
                raise ValueError(
                    f"members: {member.called!r} sets z_loss or label_smoothing, but all members "
                    "share one loss; set them under [objective]"
                )
        return self

    def list_named(self) -> tuple[NamedObjective, ...]:
        """Return the members of the mixture."""
        return tuple(
            NamedObjective(member.called, member.weight, member.objective)
            for member in self.members
        )


@dataclass(frozen=True)
class MixtureCorruption:
    """Corruption that assigns each row to a member, and applies that member's corruption."""

    kind: str  # kind of the mixture
    names: tuple[str, ...]
    shares: tuple[float, ...]  # share of samples of each objective; the sum is 1
    # corruption of each objective; None: rows stay as they are
    corruptions: tuple[batches.Corruption | None, ...]
    seed: int
    by_micro_batch: bool  # True if all samples of a micro-batch get the same objective
    padding: int  # id of padding

    def choose_by_sample(self) -> MixtureCorruption:
        """Return the same corruption, but with an objective drawn for each sample."""
        return replace(self, by_micro_batch=False)

    def identity(self) -> dict[str, Any]:
        """Return the settings that the corrupted rows depend on, to recognise the same data."""
        return {
            "kind": self.kind,
            **({"deal": "micro_batch"} if self.by_micro_batch else {}),
            "seed": self.seed,
            "shares": list(self.shares),
            "members": [
                None if corruption is None else dict(corruption.identity())
                for corruption in self.corruptions
            ],
        }

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions are too long for one of the corruptions.

        The corruption that needs the most sentinels is checked first, so that the error names it.
        """
        spans = [
            corruption for corruption in self.corruptions if isinstance(corruption, SpansLeftOut)
        ]
        spans.sort(key=lambda corruption: -corruption.count_needed_sentinels(longest))
        for corruption in (*spans, *self.corruptions):
            if isinstance(corruption, LengthLimited):
                corruption.check_length(longest)

    def draw_members(self, samples: Integers) -> Integers:
        """Draw the number [R] of the member for each of a micro-batch's `samples` [R].

        A draw depends on the sample's number only. If all rows of the micro-batch get one member,
        it is that of the lowest sample.
        """
        if self.by_micro_batch:
            samples = np.full_like(samples, samples.min())
        key = RandomKey(self.seed, "objective of a sample")
        drawn = draw_uniforms(key, np.zeros_like(samples), samples)
        ends = np.cumsum(self.shares)[:-1]
        return np.searchsorted(ends, drawn, side="right").astype(np.int64)

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of targets that the corruption leaves in one micro-batch.

        `targets` [R] are the numbers of targets of its `samples` [R] before. See `Corruption`.
        """
        members = self.draw_members(samples)
        total = 0
        for number, corruption in enumerate(self.corruptions):
            mine = members == number
            if corruption is None:
                total += int(targets[mine].sum())
            elif mine.any():
                total += corruption.denominators(step, samples[mine], targets[mine])[batches.TOKENS]
        return {batches.TOKENS: total}

    def apply(self, micro: batches.MicroBatch, step: int) -> batches.MicroBatch:
        """Return `micro` with each row corrupted by its member, as wide as the widest result."""
        members_B = self.draw_members(micro.samples)
        rows = []
        parts = []
        for number in np.unique(members_B).tolist():
            chosen = np.flatnonzero(members_B == number)
            corruption = self.corruptions[number]
            part = take_rows(micro, chosen)
            rows.append(chosen)
            parts.append(part if corruption is None else corruption.apply(part, step))
        joined = join_rows(rows, parts, self.padding)
        arrays = {**joined.arrays, MEMBERS: members_B}
        return batches.MicroBatch(arrays, micro.samples, micro.sources, joined.pieces)


def take_rows(micro: batches.MicroBatch, rows: Integers) -> batches.MicroBatch:
    """Return the `rows` of `micro` as a micro-batch; the row numbers must be in ascending order."""
    mine = np.isin(micro.pieces[:, 0], rows)
    pieces = micro.pieces[mine].copy()  # their first column is the row
    pieces[:, 0] = np.searchsorted(rows, pieces[:, 0])
    arrays = {name: array[rows] for name, array in micro.arrays.items()}
    return batches.MicroBatch(arrays, micro.samples[rows], micro.sources[rows], pieces)


def join_rows(
    rows: Sequence[Integers], parts: Sequence[batches.MicroBatch], padding: int
) -> batches.MicroBatch:
    """Join `parts` into one micro-batch; `rows` holds, for each part, where its rows go.

    Narrower rows are padded at their ends. Arrays that a part lacks are filled with zeros, such as
    the lengths of prefixes.
    """
    count = sum(map(len, rows))
    arrays: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part.arrays):
        there = [part.arrays[name] for part in parts if name in part.arrays]
        shape = (count, max(array.shape[1] for array in there))
        fill = {
            batches.IDS: padding,
            batches.DECODER_IDS: padding,
            batches.TARGETS: batches.IGNORE,
        }.get(name, 0)
        joined = np.full(shape, fill, dtype=there[0].dtype)
        # Positions of padding continue to rise, up to the highest position of any row.
        if name == batches.POSITIONS:
            farthest = max(int(array.max()) for array in there)
            joined += np.arange(shape[1]).clip(max=farthest)
        for part_rows, part in zip(rows, parts, strict=True):
            if name in part.arrays:
                array = part.arrays[name]
                joined[part_rows, : array.shape[1]] = array
        arrays[name] = joined
    order = np.argsort(np.concatenate(rows))
    pieces = np.concatenate([part.pieces for part in parts])
    pieces[:, 0] = np.concatenate(
        [part_rows[part.pieces[:, 0]] for part_rows, part in zip(rows, parts, strict=True)]
    )
    pieces = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    return batches.MicroBatch(
        arrays,
        np.concatenate([part.samples for part in parts])[order],
        np.concatenate([part.sources for part in parts])[order],
        pieces,
    )
