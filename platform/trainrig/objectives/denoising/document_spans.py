"""Spans of a row whose documents are apart, such that each document has some.

A decoder's row holds what is read and what is said of each document, so a document of which nothing
is said has no place there: its text would be lost, and its places padding.

Shapes: N tokens of the text of a row, P documents that have spans.
"""

import numpy as np

from trainrig.objectives.denoising.noise_spans import Flags, Noise, Spans, place_spans
from trainrig.randomness import RandomKey, draw_words
from trainrig.tokens.permutation import Integers


def draw_in_each(
    key: RandomKey, sample: int, noise: Noise, walls: Flags, documents: Integers, most: int
) -> Spans | None:
    """Spans of the text of `sample`, of which `documents` [N] has that of each token and `walls`
    [N] says what no span should hold: each document has its share of tokens and spans by its size,
    and one of each at least. Where `noise` is one span, it is the end of each.

    As many tokens and sentinels are said as of one text: a sentinel more takes the place of a
    token. A document of one token has no span, nor have the shortest beyond `most`, or beyond half
    of what is said. Something is left of each to be read, if they hold so much. None: the rest hold
    too little.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    sizes = np.diff(np.append(begins, len(documents)))
    tokens, count = (int(each[0]) for each in noise.count(np.array([len(documents)])))
    said = tokens + count
    longest_first = np.argsort(-sizes, kind="stable")[: min(most, said // 2)]
    chosen = np.sort(longest_first[sizes[longest_first] > 1])
    begins, sizes = begins[chosen], sizes[chosen]
    largest = sizes if int(sizes.sum()) >= said else sizes + 1
    if not len(chosen) or int(largest.sum()) < said:
        return None
    parts = share_out(said, sizes, np.full_like(sizes, 2), largest)
    room = parts // 2  # a span has a sentinel and a token at least
    counts = share_out(
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
        own, end = words[2 * begin : 2 * (begin + size)], begin + size
        placed.append(place_spans(own, tokens, count, walls[begin:end]))
    return Spans(
        np.concatenate([begin + of.begins for begin, of in zip(begins, placed, strict=True)]),
        np.concatenate([of.lengths for of in placed]),
    )


def share_out(total: int, weights: Integers, least: Integers, most: Integers) -> Integers:
    """[P] `total` in whole parts by `weights` [P], each from its `least` to its `most` [P], which
    hold `total` between them: those of Webster and Sainte-Laguë, where these do not bind."""
    room = most - least
    of = np.repeat(np.arange(len(weights)), room)
    first = np.cumsum(room) - room
    before = least[of] + np.arange(len(of)) - first[of]  # units that its part has before each
    order = np.argsort((before + 0.5) / weights[of], kind="stable")
    taken = of[order[: total - int(least.sum())]]
    return least + np.bincount(taken, minlength=len(weights))
