"""Noise spans that are removed from a text, and the two rows that result.

Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", arXiv:1910.10683, section 3.1.4. As in the paper's code, the number of removed tokens
and spans depends on the length of the text alone. Their positions are drawn uniformly. In that code
a text never begins with a span and always ends with one; here it may do either.

In rows with separate documents, each document has at least one span.

In a decoder's row each document is followed by its targets. A document without spans would have no
targets: its text would be lost, and its positions would be padding.

The text of a row is the tokens that next-token prediction would train on.

Shapes: N tokens of the text of a row, P documents that have spans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.randomness import RandomKey, draw_uniforms, draw_words
from trainrig.tokens.batches import IGNORE, MicroBatch
from trainrig.tokens.permutation import Integers

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """Amount of text to remove."""

    density: float  # share of tokens that are removed
    mean_span: float | None  # mean length of a span in tokens; None: a single span

    def count(self, lengths: Integers) -> tuple[Integers, Integers]:
        """Return how many tokens to remove from texts of `lengths` [R], and in how many spans [R].

        Both are 0 for texts of fewer than two tokens.
        """
        noise = np.rint(lengths * self.density).astype(np.int64)
        noise = np.clip(noise, 1, np.maximum(lengths - 1, 1))
        spans = np.ones_like(noise)
        if self.mean_span is not None:
            spans = np.rint(noise / self.mean_span).astype(np.int64)
        spans = np.clip(spans, 1, np.minimum(noise, lengths - noise + 1).clip(1))
        some = lengths >= 2
        return np.where(some, noise, 0), np.where(some, spans, 0)


@dataclass(frozen=True)
class Spans:
    """Spans of a text in ascending order, which do not touch one another."""

    begins: Integers  # [K]
    lengths: Integers  # [K]

    @property
    def ends(self) -> Integers:
        """The position [K] after the end of each span."""
        return self.begins + self.lengths


def draw_spans(key: RandomKey, sample: int, noise: Noise, walls: Flags) -> Spans:
    """Draw the noise spans of the text of `sample`.

    They are drawn without regard to `walls` [N], which marks the tokens that should be in no span.
    Spans with such tokens are then moved to the nearest free position. If there is none, because
    nearly all tokens are walls, the spans stay.
    """
    length = len(walls)
    tokens, count = (int(numbers[0]) for numbers in noise.count(np.array([length])))
    if not count:
        return Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return place_spans(
        draw_words(key, np.arange(2 * length), np.array([sample])), tokens, count, walls
    )


def place_spans(words: Integers, tokens: int, count: int, walls: Flags) -> Spans:
    """Place `tokens` removed tokens in `count` spans of a text.

    `walls` [N] marks the tokens that should be in no span. `words` [2 N] are random numbers.
    """
    length = len(walls)
    # Choose which of the removed tokens begin a span, and before which of the other tokens spans
    # are placed.
    cuts = _choose_numbers(words[: tokens - 1], count - 1) + 1
    lengths = np.diff(np.concatenate([[0], cuts, [tokens]]))
    gaps = _choose_numbers(words[length : 2 * length - tokens + 1], count)
    begins = gaps + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return _clear(Spans(begins, lengths), walls)


def draw_ends(noise: Noise, documents: Integers, most: int) -> Spans:
    """Return the end of each document as a span, for at most `most` documents.

    `documents` [N] is the document number of each token. If documents are too small, the text's end
    is removed as one span.
    """
    length = len(documents)
    tokens = int(noise.count(np.array([length]))[0][0])
    divided = _divide(tokens + 1, documents, most)
    if divided is None:
        return Spans(np.array([length - tokens]), np.array([tokens]))
    begins, sizes, lengths = divided
    return Spans(begins + sizes - lengths, lengths)


def draw_within(
    key: RandomKey, sample: int, noise: Noise, walls: Flags, documents: Integers, most: int
) -> Spans:
    """Draw spans as `draw_spans` does, unless one of them crosses a border between `documents` [N].

    In that case each document gets one span, with its share of tokens, at a random position, and
    there are at most `most` spans. If documents are too small, the spans stay.
    """
    spans = draw_spans(key, sample, noise, walls)
    if (documents[spans.begins] == documents[spans.ends - 1]).all():
        return spans
    divided = _divide(int(spans.lengths.sum()) + len(spans.begins), documents, most)
    if divided is None:
        return spans
    begins, sizes, lengths = divided
    drawn = draw_uniforms(key, 2 * len(documents) + begins, np.array([sample]))
    # The last token of a document, which ends it, is in no span.
    return Spans(begins + np.floor(drawn * (sizes - lengths)).astype(np.int64), lengths)


def _divide(
    said: int, documents: Integers, most: int
) -> tuple[Integers, Integers, Integers] | None:
    """Return begin, size and number of removed tokens of each document that gets a span.

    The `said` target tokens, sentinels included, are divided in proportion to document size. An
    additional sentinel takes the place of a token, so the number of target tokens depends on the
    length of the text alone. Documents that are too short for a span of their share get none, nor
    do the shortest beyond `most`. Returns None if the remaining documents are too small.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    sizes = np.diff(np.append(begins, len(documents)))
    longest_first = np.argsort(-sizes, kind="stable")
    for count in range(min(most, len(sizes)), 0, -1):
        chosen = np.sort(longest_first[:count])
        if (whole := int(sizes[chosen].sum())) < said:
            break
        # Rounded so that the parts add up to the total; no part exceeds its document's size.
        parts = np.diff(said * np.cumsum(sizes[chosen]) // whole, prepend=0)
        if parts.min() >= 2:
            return begins[chosen], sizes[chosen], parts - 1
    return None


def _choose_numbers(words: Integers, count: int) -> Integers:
    """Return `count` different random indices of `words`, ascending."""
    return np.sort(np.argsort(words, kind="stable")[:count])


def _clear(spans: Spans, walls: Flags) -> Spans:
    """Move `spans` off `walls`, to the right first, and to the left at the end of the text."""
    before = np.concatenate([[0], np.cumsum(walls)])
    if (before[spans.ends] == before[spans.begins]).all():
        return spans
    at = np.flatnonzero(walls)
    begins = spans.begins.tolist()
    lengths = spans.lengths.tolist()
    free = 0
    for number, length in enumerate(lengths):
        begin = max(begins[number], free)
        while (found := _find_walls(at, begin, begin + length)).size:
            begin = int(found[-1]) + 1
        begins[number] = begin
        free = begin + length + 1
    free = len(walls)
    for number in range(len(lengths) - 1, -1, -1):
        end = min(begins[number] + lengths[number], free)
        while (found := _find_walls(at, end - lengths[number], end)).size:
            end = int(found[0])
        begins[number] = end - lengths[number]
        free = begins[number] - 1
    return spans if begins[0] < 0 else Spans(np.array(begins, dtype=np.int64), spans.lengths)


def _find_walls(at: Integers, begin: int, end: int) -> Integers:
    first, past = np.searchsorted(at, [begin, end])
    return at[first:past]


@dataclass(frozen=True)
class Denoising:
    """A text with spans removed, and the target text with the removed spans."""

    ids: Integers  # the text with a sentinel in place of each span
    targets: Integers  # each sentinel followed by the tokens of its span
    # Position in the text of each id; for a sentinel, the beginning of its span.
    places: Integers
    target_places: Integers


def leave_out(text: Integers, spans: Spans, sentinels: Integers) -> Denoising:
    """Replace `spans` of `text` [N] by the first of `sentinels`, in order."""
    count = len(spans.begins)
    inside = np.zeros(len(text) + 1, dtype=np.int64)
    inside[spans.begins] += 1
    inside[spans.ends] -= 1
    noise = np.cumsum(inside[:-1]).astype(bool)
    begins = np.zeros(len(text), dtype=bool)
    begins[spans.begins] = True
    marked = text.copy()
    marked[begins] = sentinels[:count]
    places = np.flatnonzero(~noise | begins)
    left_out = np.flatnonzero(noise)
    where = np.searchsorted(left_out, spans.begins)
    return Denoising(
        ids=marked[places],
        targets=np.insert(text[left_out], where, sentinels[:count]),
        places=places,
        target_places=np.insert(left_out, where, spans.begins),
    )


@dataclass(frozen=True)
class RowText:
    """The text of one row: its targets, without those that are not trained on."""

    ids: Integers  # [N]
    # [N] position of each id in the row; a row's last target is at the row's length
    places: Integers
    documents: Integers  # [N] document number of each id, ascending from 1 in the row
    # [N] whether a token should be in no span: special tokens, and the first token of a document
    # without a special token before it.
    walls: Flags


def read_texts(micro: MicroBatch, special: Sequence[int], end: int) -> Iterator[RowText]:
    """Yield the text of each row of `micro`.

    `special`: ids of special tokens. `end`: id of the token that ends a document.
    """
    length = micro.ids.shape[1]
    for row, targets in enumerate(micro.targets):
        at = np.flatnonzero(targets != IGNORE)
        ids = targets[at]
        places = at + 1
        begins = micro.pieces[micro.pieces[:, 0] == row, 1]
        documents = np.searchsorted(begins, places, side="right")
        # the row's last target may be the first id of another document
        if micro.ids[row, -1] == end:
            documents = documents + (places == length)
        walls = np.isin(ids, special)
        walls[1:] |= (documents[1:] != documents[:-1]) & ~walls[:-1]
        yield RowText(ids, places, documents, walls)


def draw_in_each_document(
    key: RandomKey, sample: int, noise: Noise, walls: Flags, documents: Integers, most: int
) -> Spans | None:
    """Draw noise spans in each document of the text of `sample`.

    Each document gets a share of the removed tokens and spans in proportion to its size, and at
    least one of each. If `noise` is a single span, it is the end of each document.

    The number of target tokens, sentinels included, is that of one text: an additional sentinel
    takes the place of a token. A document of one token has no span. Neither have the shortest
    documents beyond `most` spans, or beyond half the number of target tokens. Something remains of
    each document to be read, if the documents are large enough. Returns None if the remaining
    documents are too small.

    Args:
        key: Key of the random draws.
        sample: Global sample number.
        noise: How much text to remove.
        walls: [N], whether a token should be in no span.
        documents: [N], the document number of each token.
        most: Maximum number of spans.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    sizes = np.diff(np.append(begins, len(documents)))
    tokens, count = (int(numbers[0]) for numbers in noise.count(np.array([len(documents)])))
    said = tokens + count
    longest_first = np.argsort(-sizes, kind="stable")[: min(most, said // 2)]
    chosen = np.sort(longest_first[sizes[longest_first] > 1])
    begins = begins[chosen]
    sizes = sizes[chosen]
    largest = sizes if int(sizes.sum()) >= said else sizes + 1
    if not len(chosen) or int(largest.sum()) < said:
        return None
    parts = apportion(said, sizes, np.full_like(sizes, 2), largest)
    room = parts // 2  # a span has at least a sentinel and a token
    counts = apportion(
        min(max(count, len(sizes)), int(room.sum())), sizes, np.ones_like(sizes), room
    )
    left_out = parts - counts
    if noise.mean_span is None:
        return Spans(begins + sizes - left_out, left_out)
    words = draw_words(key, np.arange(2 * len(documents)), np.array([sample]))
    placed = []
    for begin, size, tokens, count in zip(
        begins.tolist(), sizes.tolist(), left_out.tolist(), counts.tolist(), strict=True
    ):
        own = words[2 * begin : 2 * (begin + size)]
        end = begin + size
        placed.append(place_spans(own, tokens, count, walls[begin:end]))
    return Spans(
        np.concatenate([begin + of.begins for begin, of in zip(begins, placed, strict=True)]),
        np.concatenate([of.lengths for of in placed]),
    )


def apportion(total: int, weights: Integers, least: Integers, most: Integers) -> Integers:
    """Return `total` divided into whole parts [P] in proportion to `weights` [P].

    Each part is between its `least` and `most` [P], which must allow `total` together. Where these
    do not bind, the result is that of the Webster/Sainte-Laguë method.
    """
    room = most - least
    of = np.repeat(np.arange(len(weights)), room)
    first = np.cumsum(room) - room
    # units that the part already has before each further one
    before = least[of] + np.arange(len(of)) - first[of]
    order = np.argsort((before + 0.5) / weights[of], kind="stable")
    taken = of[order[: total - int(least.sum())]]
    return least + np.bincount(taken, minlength=len(weights))
