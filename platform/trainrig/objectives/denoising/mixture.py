"""Several objectives in one run: each sample is of one of them, dealt by their weights.

In the manner of Tay et al. 2022, "UL2", arXiv:2205.05131, section 3.1. Which objective a sample is
of is drawn by its number, so it is the same at any number of workers and another in each epoch. The
loss is the mean over the targets of the global batch, whichever objective they are of: an objective
counts by its samples and by how many targets it makes of each.

Where objectives make rows of different widths of the same text, all samples of a micro-batch are of
one, drawn by the number of its first: none is padded for another's sake, and no text is left out to
make widths alike.

Shapes: B rows of a micro-batch, T places of a row, R rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from trainrig.config import Settings
from trainrig.config.field_marks import FitsSeveral
from trainrig.objectives.causal import CROSS_ENTROPY, CausalLM
from trainrig.objectives.contract import (
    Computed,
    Contributions,
    Corrupting,
    DeviceBatch,
    LengthLimited,
    Output,
)
from trainrig.objectives.denoising.fill_in_the_middle import FillInTheMiddle
from trainrig.objectives.denoising.masked import MaskedLM
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.denoising.span_corruption import SpanCorruption, SpansLeftOut
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import (
    DECODER_IDS,
    IDS,
    IGNORE,
    POSITIONS,
    PREFIXES,
    TARGETS,
    TOKENS,
    Corruption,
    MicroBatch,
)
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn

MEMBERS = "members"  # [B] number of the objective of each row
LOSS_OF = "loss/"  # and the name of a member: a diagnostic, the mean over its targets

Alone = Annotated[
    CausalLM | FillInTheMiddle | MaskedLM | PrefixLM | SpanCorruption,
    Field(discriminator="kind"),
    FitsSeveral(),
]


# Objectives that are no members, and why.
ALONE = {
    "ReplacedTokenDetection": "its model has a generator and no head of tokens, so no other "
    "objective can train it; run it by itself, or have MaskedLM here",
    "MultiTokenPrediction": "its further heads would learn of its own samples alone; run it by "
    "itself, or have CausalLM here",
    "UL2": "it is a mixture itself; have SpanCorruption here, with `mode`, once for each denoiser",
}


class MixtureMember(Settings):
    """One objective of a mixture."""

    objective: Alone  # what its samples are trained by
    # Of all samples, its share is this over the sum of all weights.
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    name: str | None = Field(default=None, min_length=1)  # in metrics; None: its objective's kind

    @field_validator("objective", mode="before")
    @classmethod
    def _check_alone(cls, given: Any) -> Any:
        kind = given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)
        if kind in ALONE:
            raise ValueError(f"{kind} is no member of a mixture: {ALONE[kind]}")
        return given

    @property
    def called(self) -> str:
        """Its name in metrics."""
        return self.objective.kind if self.name is None else self.name


@dataclass(frozen=True)
class NamedObjective:
    """One of several objectives that samples are dealt to."""

    name: str  # in metrics
    weight: float  # its share of samples is this over the sum of all
    objective: Alone


class DealtObjectives(CausalLM):
    """Cross-entropy of several objectives, each sample of one of them; what mixtures share."""

    mixture_seed: int = 0  # random seed of which objective a sample is of
    # Whether each sample is dealt by itself, or all of a micro-batch together, which wastes no
    # place where objectives make rows of different widths; None: together if they do.
    deal: Literal["sample", "micro_batch"] | None = None

    def list_named(self) -> tuple[NamedObjective, ...]:
        """The objectives."""
        raise NotImplementedError

    def parts(self) -> tuple[tuple[float, CausalLM], ...]:
        """The objectives that samples are dealt to, each with its share of them."""
        whole = sum(each.weight for each in self.list_named())
        return tuple((each.weight / whole, each.objective) for each in self.list_named())

    @property
    def deals_micro_batches(self) -> bool:
        """Whether all samples of a micro-batch are of one objective."""
        if self.deal is not None:
            return self.deal == "micro_batch"
        shapes = {
            each.objective.shape if isinstance(each.objective, SpanCorruption) else None
            for each in self.list_named()
        }
        return len(shapes) > 1

    def make_corruption(self, encoder: Encoder) -> DealtRows:
        """What deals rows to objectives and has each corrupt its own. Raises DataError if the
        tokenizer lacks what one of them needs."""
        return DealtRows(
            kind=self.kind,
            names=tuple(each.name for each in self.list_named()),
            shares=tuple(share for share, _ in self.parts()),
            corruptions=tuple(
                each.objective.make_corruption(encoder)
                if isinstance(each.objective, Corrupting)
                else None
                for each in self.list_named()
            ),
            seed=self.mixture_seed,
            by_micro_batch=self.deals_micro_batches,
            padding=encoder.special_tokens.padding,
        )

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """What gives the logits of the targets of `batch`, place by place."""
        arrays = batch.arrays
        if DECODER_IDS in arrays:
            return SpanCorruption.predict(self, model, batch)  # type: ignore[arg-type]
        if PREFIXES in arrays:
            return PrefixLM.predict(self, model, batch)  # type: ignore[arg-type]
        return super().predict(model, batch)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Nats of each target of `batch`, and beside them the loss of each objective."""
        computed = super().compute(model, batch, statistics)
        found = computed.terms[CROSS_ENTROPY]
        rows_B, members_B = found.sum_rows_B(), batch.arrays[MEMBERS]
        losses = {}
        for number, each in enumerate(self.list_named()):
            mine_B = members_B == number
            losses[LOSS_OF + each.name] = Contributions(rows_B * mine_B, found.counts_B * mine_B)
        return replace(computed, diagnostics=losses)


class MixtureOfObjectives(DealtObjectives):
    """Cross-entropy of several objectives, each sample of one of them, a mean over all targets of
    the global batch."""

    kind: Literal["MixtureOfObjectives"] = "MixtureOfObjectives"  # type: ignore[assignment]  # what tells the two apart
    members: tuple[MixtureMember, ...] = Field(min_length=2)  # objectives, with the share of each

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        name, count = Counter(each.called for each in self.members).most_common(1)[0]
        if count > 1:
            raise ValueError(f"members: {count} are named {name!r}; give each a `name` of its own")
        for each in self.members:
            if each.objective.z_loss or each.objective.label_smoothing:
                raise ValueError(
                    f"members: {each.called!r} has z_loss or label_smoothing of its own, and there "
                    "is one loss for all; set them under [objective]"
                )
        return self

    def list_named(self) -> tuple[NamedObjective, ...]:
        """The members."""
        return tuple(
            NamedObjective(each.called, each.weight, each.objective) for each in self.members
        )


@dataclass(frozen=True)
class DealtRows:
    """Rows that are each of one of several objectives."""

    kind: str  # of the objective whose rows they are
    names: tuple[str, ...]
    shares: tuple[float, ...]  # of samples, 1 together
    corruptions: tuple[Corruption | None, ...]  # None: rows stay as they are
    seed: int
    by_micro_batch: bool  # whether all samples of a micro-batch are dealt together
    padding: int  # id

    def choose_by_sample(self) -> DealtRows:
        """The same, but that each sample is dealt by itself."""
        return replace(self, by_micro_batch=False)

    def identity(self) -> dict[str, Any]:
        """See Corruption."""
        return {
            "kind": self.kind,
            **({"deal": "micro_batch"} if self.by_micro_batch else {}),
            "seed": self.seed,
            "shares": list(self.shares),
            "members": [
                None if each is None else dict(each.identity()) for each in self.corruptions
            ],
        }

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions are too long for one of them: for that
        which needs the most."""
        spans = [each for each in self.corruptions if isinstance(each, SpansLeftOut)]
        spans.sort(key=lambda each: -each.count_needed_sentinels(longest))
        for each in (*spans, *self.corruptions):
            if isinstance(each, LengthLimited):
                each.check_length(longest)

    def deal(self, samples: Integers) -> Integers:
        """[R] the number of the objective that each of `samples` [R] of a micro-batch is of."""
        if self.by_micro_batch:
            samples = np.full_like(samples, samples.min())
        key = RandomKey(self.seed, "objective of a sample")
        drawn = draw_uniforms(key, np.zeros_like(samples), samples)
        ends = np.cumsum(self.shares)[:-1]
        return np.searchsorted(ends, drawn, side="right").astype(np.int64)

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """See Corruption."""
        of = self.deal(samples)
        total = 0
        for number, each in enumerate(self.corruptions):
            mine = of == number
            if each is None:
                total += int(targets[mine].sum())
            elif mine.any():
                total += each.denominators(step, samples[mine], targets[mine])[TOKENS]
        return {TOKENS: total}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """`micro`, each row by its own objective, as wide as the widest of those that it has."""
        of_B = self.deal(micro.samples)
        rows, parts = [], []
        for number in np.unique(of_B).tolist():
            chosen = np.flatnonzero(of_B == number)
            corruption, part = self.corruptions[number], take_rows(micro, chosen)
            rows.append(chosen)
            parts.append(part if corruption is None else corruption.apply(part, step))
        joined = join_rows(rows, parts, self.padding)
        arrays = {**joined.arrays, MEMBERS: of_B}
        return MicroBatch(arrays, micro.samples, micro.sources, joined.pieces)


def take_rows(micro: MicroBatch, rows: Integers) -> MicroBatch:
    """The `rows` of `micro`, ascending, alone."""
    mine = np.isin(micro.pieces[:, 0], rows)
    pieces = micro.pieces[mine].copy()
    pieces[:, 0] = np.searchsorted(rows, pieces[:, 0])
    arrays = {name: array[rows] for name, array in micro.arrays.items()}
    return MicroBatch(arrays, micro.samples[rows], micro.sources[rows], pieces)


def join_rows(rows: Sequence[Integers], parts: Sequence[MicroBatch], padding: int) -> MicroBatch:
    """One micro-batch of `parts`, whose rows are its `rows`; narrower ones are padded at their
    ends, and lack nothing that others have: a row without prefixes has none."""
    count = sum(map(len, rows))
    arrays: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part.arrays):
        there = [part.arrays[name] for part in parts if name in part.arrays]
        shape = (count, max(each.shape[1] for each in there))
        fill = {IDS: padding, DECODER_IDS: padding, TARGETS: IGNORE}.get(name, 0)
        joined = np.full(shape, fill, dtype=there[0].dtype)
        if name == POSITIONS:  # padding begins no document, nor is any place beyond a text's
            farthest = max(int(each.max()) for each in there)
            joined += np.arange(shape[1]).clip(max=farthest)
        for of, part in zip(rows, parts, strict=True):
            if name in part.arrays:
                array = part.arrays[name]
                joined[of, : array.shape[1]] = array
        arrays[name] = joined
    order = np.argsort(np.concatenate(rows))
    pieces = np.concatenate([part.pieces for part in parts])
    pieces[:, 0] = np.concatenate(
        [of[part.pieces[:, 0]] for of, part in zip(rows, parts, strict=True)]
    )
    pieces = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    return MicroBatch(
        arrays,
        np.concatenate([part.samples for part in parts])[order],
        np.concatenate([part.sources for part in parts])[order],
        pieces,
    )
