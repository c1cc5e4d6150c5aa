"""Span corruption: an encoder reads a text with spans left out, a decoder says what they were.

T5's objective (Raffel et al. 2019, arXiv:1910.10683, section 3.1.4):

    Preheat <extra_id_0> 350°F and <extra_id_1> pan </s>
    <extra_id_0> the oven to <extra_id_1> grease the </s>

A row of as many positions always gives as many tokens to encoder and decoder, so nothing is padded
but what was before.

Shapes: B rows of a micro-batch, N tokens of the text of a row, S places of the encoder, T of the
decoder, P pieces of documents in one row, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.causal import CausalLM
from trainrig.objectives.contract import DeviceBatch, Output
from trainrig.objectives.denoising.needed_tokens import check_sentinels, find_sentinels
from trainrig.objectives.denoising.noise_spans import Denoising, Noise, draw_spans, leave_out
from trainrig.objectives.denoising.texts import RowText, read_texts
from trainrig.randomness import RandomKey
from trainrig.tokens.batches import (
    DECODER_IDS,
    DECODER_SEGMENTS,
    IDS,
    IGNORE,
    SEGMENTS,
    TARGETS,
    TOKENS,
    MicroBatch,
)
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn


class SpanCorruption(CausalLM):
    """Cross-entropy of the spans left out of a text, each after its sentinel, a mean over the
    targets of the global batch."""

    kind: Literal["SpanCorruption"] = "SpanCorruption"  # type: ignore[assignment]
    noise_density: float = Field(default=0.15, gt=0, lt=1)  # share of tokens that are left out
    mean_span: float = Field(default=3.0, ge=1, allow_inf_nan=False)  # tokens of a span, on average
    # Whether one more sentinel ends what the decoder says, as in the paper's figures; its code has
    # the end of text alone.
    closing_sentinel: bool = False
    corruption_seed: int = 0  # random seed of what is left out

    def corruption(self, encoder: Encoder) -> SpansLeftOut:
        """What leaves spans out. Raises DataError without an end of text."""
        special = encoder.special_tokens
        return SpansLeftOut(
            noise=Noise(self.noise_density, self.mean_span),
            closing_sentinel=self.closing_sentinel,
            seed=self.corruption_seed,
            tokenizer=encoder.files.where,
            sentinels=tuple(find_sentinels(encoder)),
            end=encoder.end_of_text,
            padding=special.padding,
            special=tuple(sorted(special.names.values())),
        )

    def lengths(self, sequence_length: int) -> tuple[int, int]:
        """Places of the encoder and of the decoder that a row of so many positions fills."""
        noise, spans = Noise(self.noise_density, self.mean_span).count(np.array([sequence_length]))
        encoded = sequence_length - noise + spans + 1
        return int(encoded[0]), int(noise[0] + spans[0]) + 1 + self.closing_sentinel

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """What gives the logits of the decoder's targets."""
        arrays = batch.arrays
        output: Output = model(
            arrays[IDS], arrays[DECODER_IDS], arrays[SEGMENTS], arrays[DECODER_SEGMENTS]
        )
        return output


@dataclass(frozen=True)
class SpansLeftOut:
    """Rows of which spans are left out."""

    noise: Noise
    closing_sentinel: bool
    seed: int
    tokenizer: str  # named in errors
    # Ids of special tokens, `special` all that there are.
    sentinels: tuple[int, ...]
    end: int
    padding: int
    special: tuple[int, ...]

    def identity(self) -> dict[str, Any]:
        """See Corruption."""
        parts = asdict(self)
        del parts["tokenizer"]  # where it lies changes no row
        return {"kind": "SpanCorruption", **parts}

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions have more spans than sentinels."""
        spans = int(self.noise.count(np.array([longest]))[1][0])
        needed = spans + self.closing_sentinel
        check_sentinels(self.tokenizer, "SpanCorruption", len(self.sentinels), needed)

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Tokens left out, sentinels and ends."""
        return {TOKENS: int(self._lengths(targets)[1].sum())}

    def _lengths(self, texts: Integers) -> tuple[Integers, Integers]:
        """[R] places of the encoder and of the decoder that texts of so many tokens fill; none
        where nothing can be left out."""
        noise, spans = self.noise.count(texts)
        some = spans > 0
        encoded = texts - noise + spans + 1
        decoded = noise + spans + 1 + self.closing_sentinel
        return np.where(some, encoded, 0), np.where(some, decoded, 0)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """`micro` for an encoder and a decoder."""
        rows, length = micro.ids.shape
        encoded, decoded = (int(each[0]) for each in self._lengths(np.array([length])))
        ids_BS, segments_BS = np.full((rows, encoded), self.padding), np.zeros((rows, encoded), int)
        targets_BT = np.full((rows, decoded), IGNORE)
        segments_BT = np.zeros_like(targets_BT)
        pieces = micro.pieces.copy()
        for row, text in enumerate(read_texts(micro, self.special, self.end)):
            found = self._corrupted(int(micro.samples[row]), text)
            if found is None:
                continue
            source, target = len(found.ids), len(found.targets)
            ids_BS[row, :source], targets_BT[row, :target] = found.ids, found.targets
            segments_BS[row, :source] = text.documents[found.places]
            segments_BT[row, :target] = text.documents[found.target_places]
            mine = pieces[:, 0] == row
            begins = np.searchsorted(text.places, pieces[mine, 1]).clip(max=len(text.ids) - 1)
            # A piece that begins inside a span begins at its sentinel.
            pieces[mine, 1] = np.searchsorted(found.places, begins, side="right") - 1
        pieces[:, 1] = pieces[:, 1].clip(0, encoded - 1)
        if micro.positions is None:  # documents of a row see one another
            segments_BS, segments_BT = segments_BS.clip(max=1), segments_BT.clip(max=1)
        arrays = {
            IDS: ids_BS,
            SEGMENTS: segments_BS,
            DECODER_IDS: shifted(targets_BT, segments_BT, self.padding),
            DECODER_SEGMENTS: segments_BT,
            TARGETS: targets_BT,
        }
        return MicroBatch(arrays, micro.samples, micro.sources, pieces)

    def _corrupted(self, sample: int, text: RowText) -> Denoising | None:
        """The text of `sample` without some of its spans, both sides ended; None: it is too
        short."""
        key = RandomKey(self.seed, "spans left out")
        spans = draw_spans(key, sample, self.noise, text.walls)
        if not len(spans.begins):
            return None
        sentinels = np.array(self.sentinels)
        found = leave_out(text.ids, spans, sentinels)
        closing = sentinels[len(spans.begins) :][: self.closing_sentinel]
        last = len(text.ids) - 1
        return Denoising(
            ids=np.append(found.ids, self.end),
            targets=np.concatenate([found.targets, closing, [self.end]]),
            places=np.append(found.places, last),
            target_places=np.concatenate([found.target_places, [last] * (len(closing) + 1)]),
        )


def shifted(targets_BT: Integers, segments_BT: Integers, start: int) -> Integers:
    """[B, T] what a decoder reads that is to say `targets_BT`: `start`, then each but the last, and
    `start` again where another segment begins."""
    read_BT = np.full_like(targets_BT, start)
    read_BT[:, 1:] = targets_BT[:, :-1]
    read_BT[:, 1:][segments_BT[:, 1:] != segments_BT[:, :-1]] = start
    read_BT[read_BT == IGNORE] = start
    return read_BT
