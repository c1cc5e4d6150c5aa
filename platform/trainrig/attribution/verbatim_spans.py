"""Verbatim spans: the longest parts of a text that stand in one document of the corpus.

From each token of the text on, the longest part that the corpus has is found. A part inside another
one says nothing more and is left out; the others are the maximal spans (Liu et al. 2025,
arXiv:2504.07096). Spans are ranked by rarity: the product of the shares that their tokens have in
the corpus, the smallest first. So a long or unusual sentence comes before a common phrase.
"""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.attribution.corpus_index import CorpusIndex
from trainrig.tokens.tokenizers.encode import Encoder


@dataclass(frozen=True)
class VerbatimSpan:
    """A maximal span: the tokens `begin` to `end` (exclusive) of a text."""

    begin: int
    end: int
    rarity: float  # log10 of the product of its tokens' shares in the corpus, below 0


def find_spans(index: CorpusIndex, ids: Sequence[int], minimum: int) -> list[VerbatimSpan]:
    """Return the maximal spans of at least `minimum` tokens, the rarest first.

    Spans may overlap. Raises ConfigError for a text without tokens.
    """
    lengths = index.find_match_lengths(ids).tolist()
    spans: list[VerbatimSpan] = []
    past = 0  # largest end of a span that begins earlier
    for begin, length in enumerate(lengths):
        end = begin + length
        if end > past:
            past = end
            if length >= minimum:
                rarity = index.compute_log_probability(ids[begin:end]) / math.log(10)
                spans.append(VerbatimSpan(begin, end, rarity))
    return sorted(spans, key=lambda span: (span.rarity, span.begin))


def count_covered(spans: Sequence[VerbatimSpan]) -> int:
    """Return the number of tokens that are in at least one of `spans`."""
    return len({token for span in spans for token in range(span.begin, span.end)})


def decode_with_places(encoder: Encoder, ids: Sequence[int]) -> tuple[str, list[int]]:
    """Return the text of `ids`, and [T + 1] the number of characters before each token and in all.

    A character of several tokens counts with the token that completes it. The text is that of
    `Encoder.decode`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    places = [0]
    for token in ids:
        text += decoder.decode(encoder.decode_bytes([token]))
        places.append(len(text))
    text += decoder.decode(b"", final=True)
    places[-1] = len(text)
    return text, places
