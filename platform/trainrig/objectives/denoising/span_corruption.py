"""Span corruption: an encoder reads a text with spans removed, and a decoder predicts the spans.

T5's objective (Raffel et al. 2019, arXiv:1910.10683, section 3.1.4):

    Preheat <extra_id_0> 350°F and <extra_id_1> pan </s>
    <extra_id_0> the oven to <extra_id_1> grease the </s>

Rows of equal length always give equal numbers of tokens to encoder and decoder, so no padding is
added to what was there before.

The denoisers of UL2 (ul2.py) use the same corruption: a token before the text names the kind of
corruption, and the single span may be the end of the text. For a decoder, text and spans are in one
row, and the text is a prefix with bidirectional attention. If attention does not cross the
documents of a row, each document is such a text, with its own mode token and its own end.

Shapes: B rows of a micro-batch, N tokens of the text of a row, S positions of the encoder, T of the
decoder, P pieces of documents in one row, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.denoising import noise_spans
from trainrig.objectives.denoising.needed_tokens import check_sentinels, find_modes, find_sentinels
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import DeviceBatch, Output
from trainrig.objectives.objective_settings import NO_AXES, Axis, RowWork
from trainrig.randomness import RandomKey
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn


Mode = Literal["R", "S", "X"]  # R: regular, S: sequential, X: extreme denoising


class SpanCorruption(CausalLM):
    """Cross-entropy of the spans removed from a text, each after its sentinel.

    It is averaged over the targets of the global batch.
    """

    axes: ClassVar[frozenset[Axis]] = NO_AXES
    separates_by: ClassVar[str | None] = "joined = false"

    kind: Literal["SpanCorruption"] = "SpanCorruption"  # type: ignore[assignment]
    noise_density: float = Field(default=0.15, gt=0, lt=1)  # share of tokens that are removed
    # mean length of a span, in tokens
    mean_span: float = Field(default=3.0, ge=1, allow_inf_nan=False)
    # Whether the decoder's targets end with one more sentinel, as in the paper's figures. The
    # paper's code has only the end of text.
    closing_sentinel: bool = False
    # Whether to remove a single span, the end of each row's text (prefix language modelling).
    # `mean_span` has no effect then.
    suffix: bool = False
    # UL2 mode whose token, [R], [S] or [X], is put before the text. None: no token.
    mode: Mode | None = None
    # Whether text and spans are in one row, for a decoder. Otherwise the text is for an encoder and
    # the spans are for a decoder.
    joined: bool = False
    corruption_seed: int = 0  # random seed for the choice of spans

    def make_corruption(self, encoder: Encoder) -> SpansLeftOut:
        """Return the corruption that removes spans.

        Raises DataError if the tokenizer has no end of text.
        """
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
    def _noise(self) -> noise_spans.Noise:
        return noise_spans.Noise(self.noise_density, None if self.suffix else self.mean_span)

    @property
    def model_kind(self) -> Literal["Decoder", "EncoderDecoder"]:
        """A decoder if text and spans are in one row."""
        return "Decoder" if self.joined else "EncoderDecoder"

    @property
    def marks_prefixes(self) -> bool:
        """True if the text is the prefix of a row."""
        return self.joined

    @property
    def row_shape(self) -> tuple[object, ...]:
        """The settings that determine the width of rows; equal for objectives with equal widths."""
        return self._noise, self.closing_sentinel, self.mode is None, self.joined

    def compute_lengths(self, sequence_length: int) -> tuple[int, int]:
        """Return the positions of encoder and decoder for a row of `sequence_length` positions."""
        noise, spans = self._noise.count(np.array([sequence_length]))
        encoded = sequence_length - noise + spans + 1 + (self.mode is not None)
        return int(encoded[0]), int(noise[0] + spans[0]) + 1 + self.closing_sentinel

    def compute_row_length(self, sequence_length: int) -> int:
        """Return the positions of a decoder's row for one text of `sequence_length` positions.

        The end of the last span is a target only and takes no position.
        """
        return sum(self.compute_lengths(sequence_length)) - 1 if self.joined else sequence_length

    def compute_widths(self, length: int) -> tuple[int, int]:
        """Return the places of one row, or of encoder and decoder."""
        return (self.compute_row_length(length), 0) if self.joined else self.compute_lengths(length)

    def describe_row(self, length: int) -> str:
        """Return the numbers of tokens that are read and predicted."""
        read, said = self.compute_lengths(length)
        if not self.joined:
            return f"{read} encoder positions and {said} decoder positions, from {length} tokens"
        return (
            f"{self.compute_row_length(length)} positions from {length} tokens: {read} "
            f"seen in both directions and {said} predicted, of which the last is not an input"
        )

    def measure_work(self, length: int, steps: int) -> RowWork:
        """Return the work of encoder and decoder, or of a decoder whose prefix is the text."""
        read, written = self.compute_lengths(length)
        if not self.joined:
            return RowWork(written, encoded=read)
        places = self.compute_row_length(length)  # the first `read` places are a prefix
        ahead = read * (read - 1) / (2 * places)
        return RowWork(places, written / places, ahead)

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """Return the model output for `batch`, with the logits of the decoder's targets."""
        arrays = batch.arrays
        if batches.DECODER_IDS not in arrays:
            return PrefixLM.predict(self, model, batch)  # type: ignore[arg-type]
        output: Output = model(
            arrays[batches.IDS],
            arrays[batches.DECODER_IDS],
            arrays[batches.SEGMENTS],
            arrays[batches.DECODER_SEGMENTS],
        )
        return output


@dataclass(frozen=True)
class SpansLeftOut:
    """Corruption that removes spans from rows."""

    noise: noise_spans.Noise
    suffix: bool  # True if the single span is the end of the text
    mode: int | None  # id of the mode token before the text
    joined: bool  # True if text and spans are in one row
    closing_sentinel: bool
    seed: int
    tokenizer: str  # path of the tokenizer, for error messages
    # Ids of special tokens; `special` has all of them.
    sentinels: tuple[int, ...]
    end: int
    padding: int
    special: tuple[int, ...]

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the corruption. See `Corruption`."""
        parts = asdict(self)
        del parts["tokenizer"]  # the tokenizer's path does not change rows
        for name, plain in (("suffix", False), ("mode", None), ("joined", False)):
            if parts[name] == plain:
                del parts[name]
        if self.joined:  # an earlier version could leave documents without spans
            parts["gaps"] = "in each document"
        return {"kind": "SpanCorruption", **parts}

    def check_length(self, longest: int) -> None:
        """Raise DataError if rows of `longest` positions have more spans than sentinels."""
        needed = self.count_needed_sentinels(longest)
        check_sentinels(self.tokenizer, "SpanCorruption", len(self.sentinels), needed)

    def count_needed_sentinels(self, longest: int) -> int:
        """Return the number of sentinels that rows of `longest` positions need."""
        return int(self.noise.count(np.array([longest]))[1][0]) + self.closing_sentinel

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of targets: removed tokens, sentinels and ends."""
        return {batches.TOKENS: int(self._compute_lengths(targets)[1].sum())}

    def _compute_lengths(self, texts: Integers) -> tuple[Integers, Integers]:
        """Return the positions of encoder and decoder [R] for texts of `texts` [R] tokens.

        Both are 0 where nothing can be removed.
        """
        noise, spans = self.noise.count(texts)
        some = spans > 0
        encoded = texts - noise + spans + 1 + (self.mode is not None)
        decoded = noise + spans + 1 + self.closing_sentinel
        return np.where(some, encoded, 0), np.where(some, decoded, 0)

    def apply(self, micro: batches.MicroBatch, step: int) -> batches.MicroBatch:
        """Return `micro` for an encoder and a decoder, or, if joined, for a decoder alone."""
        if self.joined:
            return self._join(micro)
        rows = len(micro.ids)
        made = self._corrupt_texts(micro)
        encoded, decoded = self._compute_widths(micro)
        # Separate documents have a mode token and an end each, so the encoder reads more.
        encoded = max([encoded, *(len(found.ids) for _, found in made.values())])
        ids_BS = np.full((rows, encoded), self.padding)
        segments_BS = np.zeros((rows, encoded), int)
        targets_BT = np.full((rows, decoded), batches.IGNORE)
        segments_BT = np.zeros_like(targets_BT)
        pieces = micro.pieces.copy()
        for row, (text, found) in made.items():
            source = len(found.ids)
            target = len(found.targets)
            ids_BS[row, :source] = found.ids
            targets_BT[row, :target] = found.targets
            segments_BS[row, :source] = text.documents[found.places]
            segments_BT[row, :target] = text.documents[found.target_places]
            _move_pieces(pieces, row, text, found)
        pieces[:, 1] = pieces[:, 1].clip(0, encoded - 1)
        if micro.positions is None:  # attention crosses the documents of a row
            segments_BS = segments_BS.clip(max=1)
            segments_BT = segments_BT.clip(max=1)
        arrays = {
            batches.IDS: ids_BS,
            batches.SEGMENTS: segments_BS,
            batches.DECODER_IDS: shift_targets(targets_BT, segments_BT, self.padding),
            batches.DECODER_SEGMENTS: segments_BT,
            batches.TARGETS: targets_BT,
        }
        return batches.MicroBatch(arrays, micro.samples, micro.sources, pieces)

    def _join(self, micro: batches.MicroBatch) -> batches.MicroBatch:
        """Return `micro` with the text of each row as a prefix, followed by the spans."""
        made = self._corrupt_texts(micro)
        encoded, decoded = self._compute_widths(micro)
        whole = encoded + decoded - 1
        apart = micro.positions is not None
        joined = {row: self._join_parts(*made[row], apart) for row in made}
        # The width of rows with separate documents depends on their number of spans: none is padded
        # to the width of one text.
        widths = [sum(len(part.ids) for part in parts) for parts in joined.values() if apart]
        shape = len(micro.ids), max(widths, default=whole)
        ids_BT = np.full(shape, self.padding)
        targets_BT = np.full(shape, batches.IGNORE)
        prefixes_BT = np.zeros(shape, dtype=np.bool_)
        places_BT = np.broadcast_to(np.arange(shape[1]), shape).copy()
        pieces = micro.pieces.copy()
        for row, parts in joined.items():
            begin = 0
            begins = []
            for part in parts:
                end = begin + len(part.ids)
                ids_BT[row, begin:end] = part.ids
                targets_BT[row, begin:end] = part.targets
                prefixes_BT[row, begin : begin + part.read] = True
                places_BT[row, begin:] -= places_BT[row, begin]
                begins.append(begin)
                begin = end
            text, found = made[row]
            if apart:
                _move_pieces_to(pieces, row, text, begins, [part.document for part in parts])
            else:
                _move_pieces(pieces, row, text, found)
        arrays = {batches.IDS: ids_BT, batches.TARGETS: targets_BT, batches.PREFIXES: prefixes_BT}
        if apart:  # no document is longer than one text, but padding after the last one may be
            arrays[batches.POSITIONS] = places_BT.clip(max=whole - 1)
        else:
            pieces[:, 1] = pieces[:, 1].clip(0, encoded - 1)
        return batches.MicroBatch(arrays, micro.samples, micro.sources, pieces)

    def _compute_widths(self, micro: batches.MicroBatch) -> tuple[int, int]:
        """Return the positions of encoder and decoder for whole rows of `micro` as one text."""
        encoded, decoded = self._compute_lengths(np.array([micro.ids.shape[1]]))
        return int(encoded[0]), int(decoded[0])

    def _corrupt_texts(
        self, micro: batches.MicroBatch
    ) -> dict[int, tuple[noise_spans.RowText, noise_spans.Denoising]]:
        """Return the text and the denoising of each row, by row number, without rows too short."""
        found = {}
        apart = micro.positions is not None
        for row, text in enumerate(noise_spans.read_texts(micro, self.special, self.end)):
            made = self._corrupt_text(int(micro.samples[row]), text, apart)
            if made is not None:
                found[row] = text, made
        return found

    def _join_parts(
        self, text: noise_spans.RowText, found: noise_spans.Denoising, apart: bool
    ) -> list[JoinedText]:
        """Return the texts of a row, each joined with its targets.

        It is one text, or one for each document with targets if documents are `apart`.
        """
        if not apart:
            return [join_text(found.ids, found.targets, 1)]
        of_ids = text.documents[found.places]
        of_targets = text.documents[found.target_places]
        parts = []
        for document in np.unique(of_targets).tolist():
            read = found.ids[of_ids == document]
            if not len(read):  # the whole document is in a span that began before it
                read = np.array([self.end])
            parts.append(join_text(read, found.targets[of_targets == document], document))
        return parts

    def _draw_spans(self, sample: int, text: noise_spans.RowText, apart: bool) -> noise_spans.Spans:
        noise, spans = self.noise.count(np.array([len(text.ids)]))
        some = spans > 0
        most = len(self.sentinels) - self.closing_sentinel
        key = RandomKey(self.seed, "spans left out")
        if apart and some[0]:
            told = key, sample, self.noise, text.walls, text.documents, most
            if self.joined and (found := noise_spans.draw_in_each_document(*told)) is not None:
                return found
            return (
                noise_spans.draw_ends(self.noise, text.documents, most)
                if self.suffix
                else noise_spans.draw_within(*told)
            )
        if self.suffix:
            return noise_spans.Spans((len(text.ids) - noise)[some], noise[some])
        return noise_spans.draw_spans(key, sample, self.noise, text.walls)

    def _corrupt_text(
        self, sample: int, text: noise_spans.RowText, apart: bool
    ) -> noise_spans.Denoising | None:
        """Return the text of `sample` without some of its spans, or None if it is too short.

        Both sides get an end. A mode token is put before the text, or before each document if they
        are `apart`.
        """
        spans = self._draw_spans(sample, text, apart)
        if not len(spans.begins):
            return None
        sentinels = np.array(self.sentinels)
        found = noise_spans.leave_out(text.ids, spans, sentinels)
        closing = sentinels[len(spans.begins) :][: self.closing_sentinel]
        last = len(text.ids) - 1
        ids = found.ids
        places = found.places
        if self.mode is not None:
            firsts = _find_firsts(text.documents) if apart else np.zeros(1, dtype=np.int64)
            before = np.searchsorted(places, firsts)
            ids = np.insert(ids, before, self.mode)
            places = np.insert(places, before, firsts)
        return noise_spans.Denoising(
            ids=np.concatenate([ids, [self.end]]),
            targets=np.concatenate([found.targets, closing, [self.end]]),
            places=np.concatenate([places, [last]]),
            target_places=np.concatenate([found.target_places, [last] * (len(closing) + 1)]),
        )


@dataclass(frozen=True)
class JoinedText:
    """One text in the row of a decoder, followed by its targets."""

    ids: Integers  # the text that is read, then all targets but the last
    targets: Integers  # the target at each id; IGNORE where there is none
    read: int  # number of ids with bidirectional attention
    document: int  # number of the document in the row


def join_text(ids: Integers, targets: Integers, document: int) -> JoinedText:
    """Join `ids` as a prefix with the `targets` to predict after it."""
    none = np.full(max(len(ids) - 1, 0), batches.IGNORE)
    whole = np.concatenate([ids, targets])[:-1]
    return JoinedText(whole, np.concatenate([none, targets]), len(ids), document)


def _find_firsts(documents: Integers) -> Integers:
    """Return the position of the first token of each document."""
    return np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))


def _move_pieces_to(
    pieces: Integers, row: int, text: noise_spans.RowText, begins: list[int], documents: list[int]
) -> None:
    """Move the `pieces` of `row` to where their texts begin, which is `begins`.

    A piece whose document was left out goes to where the next one begins.
    """
    mine = np.flatnonzero(pieces[:, 0] == row)
    at = np.searchsorted(text.places, pieces[mine, 1], side="right").clip(max=len(text.ids) - 1)
    found = np.searchsorted(documents, text.documents[at]).clip(max=len(documents) - 1)
    pieces[mine, 1] = np.array(begins)[found]
    pieces[mine[:1], 1] = 0


def _move_pieces(
    pieces: Integers, row: int, text: noise_spans.RowText, found: noise_spans.Denoising
) -> None:
    """Move the `pieces` of `row` to where they begin in the text that is read."""
    mine = np.flatnonzero(pieces[:, 0] == row)
    begins = np.searchsorted(text.places, pieces[mine, 1]).clip(max=len(text.ids) - 1)
    # A piece that begins inside a span begins at the span's sentinel; the first piece at position
    # 0.
    pieces[mine, 1] = np.searchsorted(found.places, begins, side="right") - 1
    pieces[mine[:1], 1] = 0


def shift_targets(targets_BT: Integers, segments_BT: Integers, start: int) -> Integers:
    """Return the decoder's inputs [B, T] for `targets_BT`.

    They are `start`, then all targets but the last, with `start` again where a new segment begins.
    """
    read_BT = np.full_like(targets_BT, start)
    read_BT[:, 1:] = targets_BT[:, :-1]
    read_BT[:, 1:][segments_BT[:, 1:] != segments_BT[:, :-1]] = start
    read_BT[read_BT == batches.IGNORE] = start
    return read_BT
