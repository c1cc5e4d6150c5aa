"""Span corruption: an encoder reads a text with spans left out, a decoder says what they were.

T5's objective (Raffel et al. 2019, arXiv:1910.10683, section 3.1.4):

    Preheat <extra_id_0> 350°F and <extra_id_1> pan </s>
    <extra_id_0> the oven to <extra_id_1> grease the </s>

A row of as many positions always gives as many tokens to encoder and decoder, so nothing is padded
but what was before.

Denoisers of UL2 (ul2.py) are made of the same: a token before the text says how it is corrupted,
and the one span may be the text's end. For a decoder, text and spans stand in one row, and the text
is a prefix that is read from both sides. Where documents of a row are apart, each is such a text,
with its own mode and its own end.

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
from trainrig.objectives.denoising.document_spans import draw_in_each
from trainrig.objectives.denoising.needed_tokens import check_sentinels, find_modes, find_sentinels
from trainrig.objectives.denoising.noise_spans import (
    Denoising,
    Noise,
    Spans,
    draw_ends,
    draw_spans,
    draw_within,
    leave_out,
)
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.denoising.texts import RowText, read_texts
from trainrig.randomness import RandomKey
from trainrig.tokens.batches import (
    DECODER_IDS,
    DECODER_SEGMENTS,
    IDS,
    IGNORE,
    POSITIONS,
    PREFIXES,
    SEGMENTS,
    TARGETS,
    TOKENS,
    MicroBatch,
)
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn


Mode = Literal["R", "S", "X"]  # regular, sequential and extreme denoising


class SpanCorruption(CausalLM):
    """Cross-entropy of the spans left out of a text, each after its sentinel, a mean over the
    targets of the global batch."""

    kind: Literal["SpanCorruption"] = "SpanCorruption"  # type: ignore[assignment]
    noise_density: float = Field(default=0.15, gt=0, lt=1)  # share of tokens that are left out
    mean_span: float = Field(default=3.0, ge=1, allow_inf_nan=False)  # tokens of a span, on average
    # Whether one more sentinel ends what the decoder says, as in the paper's figures; its code has
    # the end of text alone.
    closing_sentinel: bool = False
    # Whether one span is left out, the end of each row's text: prefix language modelling.
    # `mean_span` says nothing then.
    suffix: bool = False
    # Mode of UL2 whose token stands before the text, [R], [S] or [X]; None: none does.
    mode: Mode | None = None
    # Whether text and spans stand in one row, for a decoder, instead of one each for an encoder and
    # a decoder.
    joined: bool = False
    corruption_seed: int = 0  # random seed of what is left out

    def make_corruption(self, encoder: Encoder) -> SpansLeftOut:
        """What leaves spans out. Raises DataError without an end of text."""
        special = encoder.special_tokens
        return SpansLeftOut(
            noise=self._noise,
            suffix=self.suffix,
            mode=None if self.mode is None else find_modes(encoder, self.kind, [self.mode])[0],
            joined=self.joined,
            closing_sentinel=self.closing_sentinel,
            seed=self.corruption_seed,
            tokenizer=encoder.files.where,
            sentinels=tuple(find_sentinels(encoder)),
            end=encoder.end_of_text,
            padding=special.padding,
            special=tuple(sorted(special.names.values())),
        )

    @property
    def _noise(self) -> Noise:
        return Noise(self.noise_density, None if self.suffix else self.mean_span)

    @property
    def shape(self) -> tuple[object, ...]:
        """What widths of rows follow from: alike for objectives whose rows are as wide."""
        return self._noise, self.closing_sentinel, self.mode is None, self.joined

    def compute_lengths(self, sequence_length: int) -> tuple[int, int]:
        """Tokens of the text, and of the spans, that a row of so many positions gives: places of
        the encoder and of the decoder."""
        noise, spans = self._noise.count(np.array([sequence_length]))
        encoded = sequence_length - noise + spans + 1 + (self.mode is not None)
        return int(encoded[0]), int(noise[0] + spans[0]) + 1 + self.closing_sentinel

    def compute_row_length(self, sequence_length: int) -> int:
        """Places that a decoder's row of so many positions fills as one text; the last span's end
        is not read."""
        return sum(self.compute_lengths(sequence_length)) - 1 if self.joined else sequence_length

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """What gives the logits of the decoder's targets."""
        arrays = batch.arrays
        if DECODER_IDS not in arrays:
            return PrefixLM.predict(self, model, batch)  # type: ignore[arg-type]
        output: Output = model(
            arrays[IDS], arrays[DECODER_IDS], arrays[SEGMENTS], arrays[DECODER_SEGMENTS]
        )
        return output


@dataclass(frozen=True)
class SpansLeftOut:
    """Rows of which spans are left out."""

    noise: Noise
    suffix: bool  # whether the one span is the text's end
    mode: int | None  # id of the token before the text
    joined: bool  # whether text and spans stand in one row
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
        for name, plain in (("suffix", False), ("mode", None), ("joined", False)):
            if parts[name] == plain:
                del parts[name]
        if self.joined:  # documents that are apart had none where the draw left them out
            parts["gaps"] = "in each document"
        return {"kind": "SpanCorruption", **parts}

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions have more spans than sentinels."""
        needed = self.count_needed_sentinels(longest)
        check_sentinels(self.tokenizer, "SpanCorruption", len(self.sentinels), needed)

    def count_needed_sentinels(self, longest: int) -> int:
        """How many rows of `longest` positions take."""
        return int(self.noise.count(np.array([longest]))[1][0]) + self.closing_sentinel

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Tokens left out, sentinels and ends."""
        return {TOKENS: int(self._compute_lengths(targets)[1].sum())}

    def _compute_lengths(self, texts: Integers) -> tuple[Integers, Integers]:
        """[R] places of the encoder and of the decoder that texts of so many tokens fill; none
        where nothing can be left out."""
        noise, spans = self.noise.count(texts)
        some = spans > 0
        encoded = texts - noise + spans + 1 + (self.mode is not None)
        decoded = noise + spans + 1 + self.closing_sentinel
        return np.where(some, encoded, 0), np.where(some, decoded, 0)

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """`micro` for an encoder and a decoder; for a decoder alone, where rows are joined."""
        if self.joined:
            return self._join(micro)
        rows = len(micro.ids)
        made = self._corrupt_texts(micro)
        encoded, decoded = self._compute_widths(micro)
        # Documents apart have a mode each, and an end each: more is read then.
        encoded = max([encoded, *(len(found.ids) for _, found in made.values())])
        ids_BS, segments_BS = np.full((rows, encoded), self.padding), np.zeros((rows, encoded), int)
        targets_BT = np.full((rows, decoded), IGNORE)
        segments_BT = np.zeros_like(targets_BT)
        pieces = micro.pieces.copy()
        for row, (text, found) in made.items():
            source, target = len(found.ids), len(found.targets)
            ids_BS[row, :source], targets_BT[row, :target] = found.ids, found.targets
            segments_BS[row, :source] = text.documents[found.places]
            segments_BT[row, :target] = text.documents[found.target_places]
            _move_pieces(pieces, row, text, found)
        pieces[:, 1] = pieces[:, 1].clip(0, encoded - 1)
        if micro.positions is None:  # documents of a row see one another
            segments_BS, segments_BT = segments_BS.clip(max=1), segments_BT.clip(max=1)
        arrays = {
            IDS: ids_BS,
            SEGMENTS: segments_BS,
            DECODER_IDS: shift_targets(targets_BT, segments_BT, self.padding),
            DECODER_SEGMENTS: segments_BT,
            TARGETS: targets_BT,
        }
        return MicroBatch(arrays, micro.samples, micro.sources, pieces)

    def _join(self, micro: MicroBatch) -> MicroBatch:
        """`micro` with the text of each row as a prefix, and the spans after it."""
        made = self._corrupt_texts(micro)
        encoded, decoded = self._compute_widths(micro)
        whole = encoded + decoded - 1
        apart = micro.positions is not None
        joined = {row: self._join_parts(*made[row], apart) for row in made}
        # Rows of documents apart are as wide as there are gaps: none is padded to that of one text.
        widths = [sum(len(part.ids) for part in parts) for parts in joined.values() if apart]
        shape = len(micro.ids), max(widths, default=whole)
        ids_BT, targets_BT = np.full(shape, self.padding), np.full(shape, IGNORE)
        prefixes_BT = np.zeros(shape, dtype=np.bool_)
        places_BT = np.broadcast_to(np.arange(shape[1]), shape).copy()
        pieces = micro.pieces.copy()
        for row, parts in joined.items():
            begin = 0
            begins = []
            for part in parts:
                end = begin + len(part.ids)
                ids_BT[row, begin:end], targets_BT[row, begin:end] = part.ids, part.targets
                prefixes_BT[row, begin : begin + part.read] = True
                places_BT[row, begin:] -= places_BT[row, begin]
                begins.append(begin)
                begin = end
            text, found = made[row]
            if apart:
                _move_pieces_to(pieces, row, text, begins, [part.document for part in parts])
            else:
                _move_pieces(pieces, row, text, found)
        arrays = {IDS: ids_BT, TARGETS: targets_BT, PREFIXES: prefixes_BT}
        if apart:  # no document is longer than one text; padding may be, after the last of them
            arrays[POSITIONS] = places_BT.clip(max=whole - 1)
        else:
            pieces[:, 1] = pieces[:, 1].clip(0, encoded - 1)
        return MicroBatch(arrays, micro.samples, micro.sources, pieces)

    def _compute_widths(self, micro: MicroBatch) -> tuple[int, int]:
        """Places of the encoder and of the decoder that whole rows of `micro` fill as one text."""
        encoded, decoded = self._compute_lengths(np.array([micro.ids.shape[1]]))
        return int(encoded[0]), int(decoded[0])

    def _corrupt_texts(self, micro: MicroBatch) -> dict[int, tuple[RowText, Denoising]]:
        """By row: its text, and what it is without some of its spans; but of rows too short."""
        found = {}
        apart = micro.positions is not None
        for row, text in enumerate(read_texts(micro, self.special, self.end)):
            made = self._corrupt_text(int(micro.samples[row]), text, apart)
            if made is not None:
                found[row] = text, made
        return found

    def _join_parts(self, text: RowText, found: Denoising, apart: bool) -> list[JoinedText]:
        """The texts of a row, each with what is said of it: one, or where documents are `apart`
        one of each that something is said of."""
        if not apart:
            return [join_text(found.ids, found.targets, 1)]
        of_ids, of_targets = text.documents[found.places], text.documents[found.target_places]
        parts = []
        for each in np.unique(of_targets).tolist():
            read = found.ids[of_ids == each]
            if not len(read):  # all of it is in a span that began before it
                read = np.array([self.end])
            parts.append(join_text(read, found.targets[of_targets == each], each))
        return parts

    def _draw_spans(self, sample: int, text: RowText, apart: bool) -> Spans:
        noise, spans = self.noise.count(np.array([len(text.ids)]))
        some = spans > 0
        most = len(self.sentinels) - self.closing_sentinel
        key = RandomKey(self.seed, "spans left out")
        if apart and some[0]:
            told = key, sample, self.noise, text.walls, text.documents, most
            if self.joined and (found := draw_in_each(*told)) is not None:
                return found
            return (
                draw_ends(self.noise, text.documents, most) if self.suffix else draw_within(*told)
            )
        if self.suffix:
            return Spans((len(text.ids) - noise)[some], noise[some])
        return draw_spans(key, sample, self.noise, text.walls)

    def _corrupt_text(self, sample: int, text: RowText, apart: bool) -> Denoising | None:
        """The text of `sample` without some of its spans, both sides ended, and with its mode, of
        each document where they are `apart`; None: it is too short."""
        spans = self._draw_spans(sample, text, apart)
        if not len(spans.begins):
            return None
        sentinels = np.array(self.sentinels)
        found = leave_out(text.ids, spans, sentinels)
        closing = sentinels[len(spans.begins) :][: self.closing_sentinel]
        last = len(text.ids) - 1
        ids, places = found.ids, found.places
        if self.mode is not None:
            firsts = _find_firsts(text.documents) if apart else np.zeros(1, dtype=np.int64)
            before = np.searchsorted(places, firsts)
            ids, places = np.insert(ids, before, self.mode), np.insert(places, before, firsts)
        return Denoising(
            ids=np.concatenate([ids, [self.end]]),
            targets=np.concatenate([found.targets, closing, [self.end]]),
            places=np.concatenate([places, [last]]),
            target_places=np.concatenate([found.target_places, [last] * (len(closing) + 1)]),
        )


@dataclass(frozen=True)
class JoinedText:
    """One text in the row of a decoder, with what is said of it."""

    ids: Integers  # what is read, and then all of what is said but its last
    targets: Integers  # of each of them, IGNORE where there is none
    read: int  # how many are read from both sides
    document: int  # number of its document in the row


def join_text(ids: Integers, targets: Integers, document: int) -> JoinedText:
    """`ids` as a prefix, and `targets` that are to be said after it."""
    none = np.full(max(len(ids) - 1, 0), IGNORE)
    whole = np.concatenate([ids, targets])[:-1]
    return JoinedText(whole, np.concatenate([none, targets]), len(ids), document)


def _find_firsts(documents: Integers) -> Integers:
    """The place of the first token of each document."""
    return np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))


def _move_pieces_to(
    pieces: Integers, row: int, text: RowText, begins: list[int], documents: list[int]
) -> None:
    """Have `pieces` of `row` say where each begins of the texts that begin at `begins`; one that
    is left out, where the next would."""
    mine = np.flatnonzero(pieces[:, 0] == row)
    at = np.searchsorted(text.places, pieces[mine, 1], side="right").clip(max=len(text.ids) - 1)
    found = np.searchsorted(documents, text.documents[at]).clip(max=len(documents) - 1)
    pieces[mine, 1] = np.array(begins)[found]
    pieces[mine[:1], 1] = 0


def _move_pieces(pieces: Integers, row: int, text: RowText, found: Denoising) -> None:
    """Have `pieces` of `row` say where each begins in the text that is read."""
    mine = np.flatnonzero(pieces[:, 0] == row)
    begins = np.searchsorted(text.places, pieces[mine, 1]).clip(max=len(text.ids) - 1)
    # A piece that begins inside a span begins at its sentinel; the first at what is before it.
    pieces[mine, 1] = np.searchsorted(found.places, begins, side="right") - 1
    pieces[mine[:1], 1] = 0


def shift_targets(targets_BT: Integers, segments_BT: Integers, start: int) -> Integers:
    """[B, T] what a decoder reads that is to say `targets_BT`: `start`, then each but the last, and
    `start` again where another segment begins."""
    read_BT = np.full_like(targets_BT, start)
    read_BT[:, 1:] = targets_BT[:, :-1]
    read_BT[:, 1:][segments_BT[:, 1:] != segments_BT[:, :-1]] = start
    read_BT[read_BT == IGNORE] = start
    return read_BT
