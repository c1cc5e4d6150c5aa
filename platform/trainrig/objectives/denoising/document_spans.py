"""Noise spans for rows with separate documents, such that each document has at least one span.

In a decoder's row each document is followed by its targets. A document without spans would have no
targets: its text would be lost, and its positions would be padding.

Shapes: N tokens of the text of a row, P documents that have spans.
"""

import numpy as np

from trainrig.objectives.denoising.noise_spans import Flags, Noise, Spans, place_spans
from trainrig.randomness import RandomKey, draw_words
from trainrig.tokens.permutation import Integers


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
