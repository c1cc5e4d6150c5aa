"""Objectives of encoders: masked language modelling, and replaced-token detection.

*Masked language modelling*: an encoder predicts hidden tokens from the text on both sides.

Devlin et al. 2018, "BERT", arXiv:1810.04805, section 3.1: of the tokens that are predicted, most
are replaced by a mask token, some by a random token, and some are left as they are. Whole words are
hidden as in BERT's code since 2019. Span lengths are those of Joshi et al. 2019, "SpanBERT",
arXiv:1907.10529, section 3.1, but the replacement of each token is drawn separately.

*Replaced-token detection*: a generator fills in tokens, an encoder detects the replacements.

Clark et al. 2020, "ELECTRA", arXiv:2003.10555, section 3. The two are one model: the generator
shares the encoder's embedding, one optimizer trains both, and no gradient flows through the sampled
tokens. A sampled token that equals the original counts as not replaced.

Shapes: B rows of a micro-batch, T positions, N positions that are sampled, R of those in a block, C
channels, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trainrig.objectives.denoising.needed_tokens import need_tokens
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
)
from trainrig.objectives.objective_settings import NO_AXES, Axis
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.special_tokens import MASK, PUBLISHED_NAMES
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:
    from torch import Tensor, nn


Unit = Literal["token", "word", "span"]
# added to draws below 1, so that these tokens are chosen last
SPECIAL = 2.0
OUTSIDE = 4.0


class MaskedLM(CausalLM):
    """Cross-entropy of the hidden tokens, averaged over all hidden tokens of the global batch.

    Special tokens are never replaced. The number of predicted tokens of a row depends on its length
    and sample number alone. If a row has fewer ordinary tokens than that, special tokens are
    predicted unchanged.
    """

    axes: ClassVar[frozenset[Axis]] = NO_AXES

    kind: Literal["MaskedLM"] = "MaskedLM"  # type: ignore[assignment]  # not the base class's kind
    rate: float = Field(default=0.15, gt=0, lt=1)  # share of tokens that are predicted
    # The share of predicted tokens from step `rate_steps` on, reached linearly from `rate` (30% to
    # 15%: Ankner et al. 2023, arXiv:2305.15096). None: `rate` throughout.
    final_rate: float | None = Field(default=None, gt=0, lt=1)
    rate_steps: int | None = Field(default=None, ge=1)  # number of steps that the change takes
    # share of predicted tokens that the mask token replaces
    masked: float = Field(default=0.8, ge=0, le=1)
    # Share of predicted tokens that a random token replaces; the others are left as they are.
    replaced: float = Field(default=0.1, ge=0, le=1)
    # What is hidden together: single tokens, whole words, or spans. The last word or span of a row
    # may be hidden in part, as the number of tokens is fixed.
    unit: Unit = "token"
    # mean length of a span in tokens; the default is SpanBERT's
    mean_span: float = Field(default=3.8, ge=1)
    longest_span: int = Field(default=10, ge=1)  # maximum length of a span, in tokens
    corruption_seed: int = 0  # random seed for the choice of tokens

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.masked + self.replaced > 1:
            raise ValueError(
                f"masked ({self.masked:g}) and replaced ({self.replaced:g}) add up to more than 1; "
                "lower one of them"
            )
        if (self.final_rate is None) != (self.rate_steps is None):
            raise ValueError("final_rate and rate_steps belong together; set both or neither")
        return self

    @property
    def model_kind(self) -> Literal["Encoder"]:
        """An encoder, in which each token sees the text on both sides."""
        return "Encoder"

    @property
    def changes_over_steps(self) -> bool:
        """True with `final_rate`."""
        return self.final_rate is not None

    def rate_at(self, step: int) -> float:
        """Return the share of tokens that are predicted at `step`."""
        if self.final_rate is None or self.rate_steps is None:
            return self.rate
        share = min(step / self.rate_steps, 1.0)
        return self.rate + share * (self.final_rate - self.rate)

    def mean_rate(self, steps: int) -> float:
        """Return the mean share of tokens that are predicted over the first `steps` steps."""
        if self.final_rate is None or self.rate_steps is None:
            return self.rate
        changing = min(self.rate_steps, steps)
        middle = (self.rate + self.rate_at(changing)) / 2
        return (middle * changing + self.final_rate * (steps - changing)) / steps

    def make_corruption(self, encoder: Encoder) -> MaskedTokens:
        """Return the corruption that hides tokens.

        Raises DataError if the tokenizer has no mask token.
        """
        mask = encoder.special_tokens.mask
        special = np.array(sorted(encoder.special_ids.values()), dtype=np.int64)
        words = np.setdiff1d(np.arange(encoder.vocabulary_size), special)
        begins, ends = find_letters_at_ends(encoder)
        return MaskedTokens(
            settings=self,
            mask=mask.id if mask else need_tokens(encoder, self.kind, [_NAMES])[0],
            special=special,
            words=words,
            begins=begins,
            ends=ends,
        )


_NAMES = (MASK, *PUBLISHED_NAMES[MASK])


def find_letters_at_ends(encoder: Encoder) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether the text of each id begins, and ends, with a word character: two arrays [V].

    Word characters are letters, digits and parts of a multi-byte character. A token that begins
    with one continues the word of a token that ends with one.
    """
    texts = [encoder.decode_bytes([number]) for number in range(encoder.vocabulary_size)]
    special = set(encoder.special_ids.values())

    def is_of_word(byte: bytes) -> bool:
        return byte.isalnum() or byte > b"\x7f"

    kept = [b"" if number in special else text for number, text in enumerate(texts)]
    return (
        np.array([is_of_word(text[:1]) for text in kept], dtype=bool),
        np.array([is_of_word(text[-1:]) for text in kept], dtype=bool),
    )


@dataclass(frozen=True)
class MaskedTokens:
    """Corruption that hides some tokens and makes them the only targets."""

    settings: MaskedLM
    mask: int
    special: Integers  # ids that are never replaced
    words: Integers  # ids that may replace one
    begins: NDArray[np.bool_]  # [V] see `find_letters_at_ends`
    ends: NDArray[np.bool_]

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the corruption. See `Corruption`."""
        return {**self.settings.model_dump(mode="json"), "mask": self.mask}

    def count_predicted(self, step: int, samples: Integers, targets: Integers) -> Integers:
        """Return how many tokens of each row are predicted, as integers [R].

        It is the rate times the row's number of `targets`, rounded up or down at random so that the
        mean is exact, and at least one for a row that has targets.
        """
        rounded = draw_uniforms(self._make_key("count"), np.zeros_like(samples), samples)
        counts = np.floor(self.settings.rate_at(step) * targets + rounded).astype(np.int64)
        bounded: Integers = np.minimum(np.maximum(counts, 1), targets)
        return bounded

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of predicted tokens. See `Corruption`."""
        return {batches.TOKENS: int(self.count_predicted(step, samples, targets).sum())}

    def apply(self, micro: batches.MicroBatch, step: int) -> batches.MicroBatch:
        """Return `micro` with hidden tokens, in the same shape.

        A position with a target is one of text. The last position of a row, whose target is in the
        next row, has none, so each token is in one row of an epoch once.
        """
        ids_BT = micro.ids
        text_BT = micro.targets != batches.IGNORE
        counts_B = self.count_predicted(step, micro.samples, text_BT.sum(1))
        places_T = np.arange(ids_BT.shape[1], dtype=np.int64)
        drawn_BT = draw_uniforms(self._make_key("order"), places_T, micro.samples[:, None])
        scores_BT = drawn_BT + SPECIAL * np.isin(ids_BT, self.special) + OUTSIDE * ~text_BT
        if self.settings.unit != "token":
            for row, scores_T in enumerate(scores_BT):
                groups_T = self._number_groups(ids_BT[row], scores_T, int(micro.samples[row]))
                scores_BT[row] = _rank_groups(scores_T, groups_T, int(counts_B[row]))
        ranks_BT = np.argsort(np.argsort(scores_BT, axis=1, kind="stable"), axis=1)
        predicted_BT = ranks_BT < counts_B[:, None]
        arrays = {
            **micro.arrays,
            batches.IDS: self._hide_tokens(micro, predicted_BT),
            batches.TARGETS: np.where(predicted_BT, ids_BT, batches.IGNORE),
        }
        return batches.MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)

    def _hide_tokens(self, micro: batches.MicroBatch, predicted_BT: NDArray[np.bool_]) -> Integers:
        """Return the ids [B, T] with predicted tokens masked, replaced or unchanged."""
        ids_BT = micro.ids
        settings = self.settings
        places_T = np.arange(ids_BT.shape[1], dtype=np.int64)
        samples_B1 = micro.samples[:, None]
        how_BT = draw_uniforms(self._make_key("how"), places_T, samples_B1)
        other_BT = draw_uniforms(self._make_key("replacement"), places_T, samples_B1)
        random_BT = self.words[(other_BT * len(self.words)).astype(np.int64)]
        free_BT = predicted_BT & ~np.isin(ids_BT, self.special)
        changed_BT = np.where(free_BT & (how_BT < settings.masked), self.mask, ids_BT)
        random = (how_BT >= settings.masked) & (how_BT < settings.masked + settings.replaced)
        return np.where(free_BT & random, random_BT, changed_BT)

    def _number_groups(
        self, ids_T: Integers, scores_T: NDArray[np.float64], sample: int
    ) -> Integers:
        """Return the number [T] of the word or span of each position, ascending from 0.

        Special tokens and positions without text are a group each.
        """
        alone_T = scores_T >= SPECIAL
        # True where the position before ends a group
        before_T = np.concatenate([[True], alone_T[:-1]])
        if self.settings.unit == "word":
            ended_T = np.concatenate([[True], ~self.ends[ids_T[:-1]]])
            begins_T = ~self.begins[ids_T] | ended_T
        else:
            # Spans are adjacent, each with a length from a geometric distribution.
            draws = draw_uniforms(
                self._make_key("spans"), np.arange(len(ids_T), dtype=np.int64), np.array([sample])
            )
            mean = self.settings.mean_span
            longest = self.settings.longest_span
            lengths = np.ones(len(ids_T), dtype=np.int64)
            if mean > 1:
                lengths += np.floor(np.log1p(-draws) / np.log1p(-1 / mean)).astype(np.int64)
            begins_T = np.zeros(len(ids_T), dtype=bool)
            starts = np.concatenate([[0], np.cumsum(np.minimum(lengths, longest))])
            begins_T[starts[starts < len(ids_T)]] = True
        groups: Integers = np.cumsum(begins_T | alone_T | before_T) - 1
        return groups

    def is_special(self, ids: Integers) -> NDArray[np.bool_]:
        """Return whether each of `ids` is a special token, which is never replaced."""
        return np.isin(ids, self.special)

    def _make_key(self, what: str) -> RandomKey:
        return RandomKey(self.settings.corruption_seed, "masked prediction", what)


def _rank_groups(
    scores_T: NDArray[np.float64], groups_T: Integers, count: int
) -> NDArray[np.float64]:
    """Return scores [T] whose lowest `count` positions are whole groups.

    Groups are taken in the order of the score at their first position. A group that does not fit is
    skipped. If no other group is left, the first of the skipped ones is taken in part.
    """
    firsts_W, sizes_W = np.unique(groups_T, return_index=True, return_counts=True)[1:]
    order_W = np.argsort(scores_T[firsts_W], kind="stable")
    ranks_W = np.full(len(firsts_W), len(firsts_W) * 2.0)
    left = count
    for rank, group in enumerate(order_W.tolist()):
        fits = sizes_W[group] <= left and scores_T[firsts_W[group]] < SPECIAL
        ranks_W[group] = rank + (0 if fits else len(order_W))
        left -= int(sizes_W[group]) if fits else 0
    return ranks_W[groups_T]


DETECTION = "detection"  # name of the detection loss term
# Unit fraction of probabilities: integer sums are the same in any order.
PARTS = 2**40


class ReplacedTokenDetection(MaskedLM):
    """Cross-entropy of a generator on hidden tokens, and of an encoder that detects replacements.

    The generator's loss is averaged over the hidden tokens of the global batch, the detection's
    over all tokens of text.
    """

    head: ClassVar[Literal["replaced"]] = "replaced"
    loss_unit: ClassVar[str] = "nats"
    unmixable: ClassVar[str | None] = (
        "its model has a generator and no head for tokens, so no other objective can train it; "
        "train it alone, or use MaskedLM here"
    )
    unsweepable: ClassVar[str | None] = (
        "its generator makes the task harder as it learns, so models of different sizes have "
        "different tasks and their losses give no law; sweep MaskedLM, or train single runs with "
        "`trainrig pretrain`"
    )

    kind: Literal["ReplacedTokenDetection"] = "ReplacedTokenDetection"  # type: ignore[assignment]  # not the base class's kind
    # Share of predicted tokens that the mask token replaces in the generator's input. ELECTRA's
    # paper uses 1, its code 0.85.
    masked: float = Field(default=1.0, ge=0, le=1)
    # Share of predicted tokens that a random token replaces in the generator's input.
    replaced: float = Field(default=0.0, ge=0, le=1)
    # Weight of the detection loss, in nats per token, relative to the generator's loss: lambda in
    # section 3 of the paper.
    detection_weight: float = Field(default=50.0, gt=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The generator's terms, followed by the detection's."""
        return (*super().terms, Term(DETECTION, per=batches.PLACES, weight=self.detection_weight))

    def make_corruption(self, encoder: Encoder) -> DrawnTokens:
        """Return the corruption that hides tokens and adds numbers to sample replacements with.

        Raises DataError if the tokenizer has no mask token.
        """
        return DrawnTokens(**vars(super().make_corruption(encoder)))

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the generator's and the detection's loss.

        Diagnostics are the shares of hidden tokens that were replaced, of tokens detected
        correctly, and of replaced tokens that were detected.
        """
        from torch.nn.functional import binary_cross_entropy_with_logits

        arrays = batch.arrays
        ids_BT = arrays[batches.IDS]
        targets_BT = arrays[batches.TARGETS]
        hidden_BT = targets_BT != batches.IGNORE
        text_BT = arrays[batches.TEXT_PLACES].bool()
        text_ids_BT = targets_BT.where(hidden_BT, ids_BT)

        def replace(generated: Output) -> Tensor:
            return draw_entries(generated, text_ids_BT, arrays[batches.DRAWS])

        rows = (
            {} if batches.POSITIONS not in arrays else {"positions_BT": arrays[batches.POSITIONS]}
        )
        generated, drawn_BT, detected = model(ids_BT, replace=replace, **rows)
        logits_BT = detected.logits.squeeze(-1).float()
        replaced_BT = drawn_BT != text_ids_BT
        nats_BT = binary_cross_entropy_with_logits(
            logits_BT, replaced_BT.float(), reduction="none"
        ).masked_fill(~text_BT, 0.0)
        terms = self.compute_losses(generated, targets_BT)
        terms[DETECTION] = Contributions(nats_BT, text_BT.sum(1))
        told_BT = logits_BT.detach() > 0

        def share(of_BT: Tensor, among_BT: Tensor) -> Contributions:
            return Contributions((of_BT & among_BT).float(), among_BT.sum(1))

        watched = {
            "replaced": share(replaced_BT, hidden_BT),
            "accuracy": share(told_BT == replaced_BT, text_BT),
            "found": share(told_BT, replaced_BT),
        }
        return Computed(terms, {**generated.auxiliary, **detected.auxiliary}, watched)


@dataclass(frozen=True)
class DrawnTokens(MaskedTokens):
    """Corruption that hides tokens, each with a random number to sample its replacement."""

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of hidden tokens and of tokens of text. See `Corruption`."""
        return {**super().denominators(step, samples, targets), batches.PLACES: int(targets.sum())}

    def apply(self, micro: batches.MicroBatch, step: int) -> batches.MicroBatch:
        """Return `micro` with hidden tokens and random numbers. See `MaskedTokens`.

        A special token that is predicted stays as it is.
        """
        made = super().apply(micro, step)
        places_T = np.arange(micro.ids.shape[1], dtype=np.int64)
        key = RandomKey(self.settings.corruption_seed, "replaced tokens")
        drawn_BT = draw_uniforms(key, places_T, micro.samples[:, None])
        free_BT = (made.targets != batches.IGNORE) & ~self.is_special(micro.ids)
        arrays: dict[str, Any] = {
            **made.arrays,
            batches.TEXT_PLACES: (micro.targets != batches.IGNORE).astype(np.int64),
            batches.DRAWS: np.where(free_BT, drawn_BT, -1.0),
        }
        return batches.MicroBatch(arrays, made.samples, made.sources, made.pieces)


def draw_entries(output: Output, text_ids_BT: Tensor, draws_BT: Tensor) -> Tensor:
    """Return `text_ids_BT` [B, T] with sampled ids at the positions where `draws_BT` is 0 or more.

    An id is sampled from the distribution of `output` by its inverse cumulative distribution: the
    first id whose cumulative probability exceeds the draw.
    """
    import torch

    from trainrig.objectives.chunked_head import cut_blocks

    places_N = (draws_BT.flatten() >= 0).nonzero().squeeze(1)
    draws_N = draws_BT.flatten()[places_N]
    ids = text_ids_BT.flatten().clone()
    with torch.no_grad():
        hidden_NC = output.hidden.detach().flatten(0, 1)[places_N]
        for rows in cut_blocks(len(places_N), output.head.weight_VC):
            shares_RV = output.head(hidden_NC[rows]).float().softmax(-1)
            upto_RV = (shares_RV.double() * PARTS).long().cumsum(-1)
            wanted_R1 = (draws_N[rows, None] * upto_RV[:, -1:]).long()
            found_R1 = torch.searchsorted(upto_RV, wanted_R1, right=True)
            ids[places_N[rows]] = found_R1.squeeze(1)
    return ids.view_as(text_ids_BT)
