"""Spans that are left out of a text, and the two rows that come of it.

Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", arXiv:1910.10683, section 3.1.4. How many tokens and spans are left out follows from
the length of the text alone, as in the paper's code; where they are is drawn, each place as likely.
In the code a text never begins with a span and always ends with one; here it may do either.

Shapes: N tokens of a text, K spans, R rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.randomness import RandomKey, draw_uniforms, draw_words
from trainrig.tokens.permutation import Integers

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """How much of a text is left out."""

    density: float  # share of tokens
    mean_span: float | None  # tokens of a span; None: all are in one

    def count(self, lengths: Integers) -> tuple[Integers, Integers]:
        """[R] tokens left out of texts of `lengths` [R], and [R] the spans that they are in; none
        of texts of fewer than two tokens."""
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
    """Spans of a text that do not touch one another, ascending."""

    begins: Integers  # [K]
    lengths: Integers  # [K]

    @property
    def ends(self) -> Integers:
        """[K] the place after each."""
        return self.begins + self.lengths


def draw_spans(key: RandomKey, sample: int, noise: Noise, walls: Flags) -> Spans:
    """Spans of the text of `sample`, of which `walls` [N] says what no span may hold.

    They are drawn as if there were no walls, and those that hold one are moved to the nearest
    place that is free. Where there is none, as nearly all is walls, they stay.
    """
    length = len(walls)
    tokens, count = (int(each[0]) for each in noise.count(np.array([length])))
    if not count:
        return Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return place_spans(
        draw_words(key, np.arange(2 * length), np.array([sample])), tokens, count, walls
    )


def place_spans(words: Integers, tokens: int, count: int, walls: Flags) -> Spans:
    """`tokens` left out in `count` spans of a text of which `walls` [N] says what they should not
    hold; `words` [2 N] are random."""
    length = len(walls)
    # Which of the tokens left out begin a span, and before which of the others spans stand.
    cuts = _choose_numbers(words[: tokens - 1], count - 1) + 1
    lengths = np.diff(np.concatenate([[0], cuts, [tokens]]))
    gaps = _choose_numbers(words[length : 2 * length - tokens + 1], count)
    begins = gaps + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return _clear(Spans(begins, lengths), walls)


def draw_ends(noise: Noise, documents: Integers, most: int) -> Spans:
    """The end of each document, of a text of which `documents` [N] has that of each token; at
    `most` so many. Where documents hold too little, the text's end is left out, as one span."""
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
    """Spans as `draw_spans` draws them, but where one would reach across `documents` [N]: then one
    in each document, of its share, at a place that is drawn; at `most` so many spans. Where
    documents hold too little, spans stay."""
    spans = draw_spans(key, sample, noise, walls)
    if (documents[spans.begins] == documents[spans.ends - 1]).all():
        return spans
    divided = _divide(int(spans.lengths.sum()) + len(spans.begins), documents, most)
    if divided is None:
        return spans
    begins, sizes, lengths = divided
    drawn = draw_uniforms(key, 2 * len(documents) + begins, np.array([sample]))
    # A document's last token, which ends it, is in none.
    return Spans(begins + np.floor(drawn * (sizes - lengths)).astype(np.int64), lengths)


def _divide(
    said: int, documents: Integers, most: int
) -> tuple[Integers, Integers, Integers] | None:
    """Begin and size of each document that has a span, and the tokens of that.

    `said` tokens and sentinels in all, divided by size: a sentinel more takes the place of a token,
    so how much is said follows from the length of the text alone. Documents too short for a span of
    their share have none, nor have more than `most`. None: those that are left hold too little.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    sizes = np.diff(np.append(begins, len(documents)))
    longest_first = np.argsort(-sizes, kind="stable")
    for count in range(min(most, len(sizes)), 0, -1):
        chosen = np.sort(longest_first[:count])
        if (whole := int(sizes[chosen].sum())) < said:
            break
        # Rounded so that the parts add up to all; none is above its document's size.
        parts = np.diff(said * np.cumsum(sizes[chosen]) // whole, prepend=0)
        if parts.min() >= 2:
            return begins[chosen], sizes[chosen], parts - 1
    return None


def _choose_numbers(words: Integers, count: int) -> Integers:
    """`count` different numbers below that of `words`, which are random; ascending."""
    return np.sort(np.argsort(words, kind="stable")[:count])


def _clear(spans: Spans, walls: Flags) -> Spans:
    """`spans` moved off `walls`, to the right first, and to the left where the text ends."""
    before = np.concatenate([[0], np.cumsum(walls)])
    if (before[spans.ends] == before[spans.begins]).all():
        return spans
    at = np.flatnonzero(walls)
    begins, lengths = spans.begins.tolist(), spans.lengths.tolist()
    free = 0
    for number, length in enumerate(lengths):
        begin = max(begins[number], free)
        while (found := _find_walls(at, begin, begin + length)).size:
            begin = int(found[-1]) + 1
        begins[number], free = begin, begin + length + 1
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
    """A text with spans left out, and the text that says what they were."""

    ids: Integers  # the text, a sentinel in place of each span
    targets: Integers  # each sentinel with the tokens of its span
    # The place in the text of each of them; of a sentinel, that where its span begins.
    places: Integers
    target_places: Integers


def leave_out(text: Integers, spans: Spans, sentinels: Integers) -> Denoising:
    """`text` [N] without `spans`, the first `len(spans)` of `sentinels` in their places."""
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
