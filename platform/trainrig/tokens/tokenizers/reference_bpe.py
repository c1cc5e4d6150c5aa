"""A reference implementation of byte-pair encoding: slow and simple, for tests.

Words are given, each a string of characters; a merge never crosses two words. Each round merges
the commonest pair of neighbours everywhere, from the left. Which of several as common goes first
is the tie rule:

- "first_seen": the pair that comes first in the words as they are given (Sennrich et al. 2016,
  arXiv:1508.07909, whose program keeps pairs in the order it met them);
- "lowest_pair_id": the pair of the lower first id, then the lower second one. Ids are the places
  in the alphabet, sorted by code point, then the merges in their order: the tokenizers library's.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Pair = tuple[str, str]
TieRule = Literal["first_seen", "lowest_pair_id"]


def train(
    words: Iterable[str], merges: int, ties: TieRule, alphabet: Iterable[str] = ()
) -> list[Pair]:
    """The first `merges` merges, or fewer where all words are whole.

    `alphabet`: characters that have ids beside those of the words.
    """
    count_of = Counter(words)  # in the order in which words are first seen
    pieces_of = {word: list(word) for word in count_of}
    ids = {entry: i for i, entry in enumerate(sorted({*alphabet, *"".join(count_of)}))}
    learned: list[Pair] = []
    while len(learned) < merges:
        count: Counter[Pair] = Counter()
        for word, pieces in pieces_of.items():
            for pair in itertools.pairwise(pieces):
                count[pair] += count_of[word]
        if not count:
            break
        commonest = max(count.values())
        tied = [pair for pair in count if count[pair] == commonest]
        best = tied[0] if ties == "first_seen" else min(tied, key=_make_key(ids))
        learned.append(best)
        ids.setdefault("".join(best), len(ids))
        pieces_of = {word: merge_pair(pieces, best) for word, pieces in pieces_of.items()}
    return learned


def merge_pair(pieces: Sequence[str], pair: Pair) -> list[str]:
    """`pieces` with each occurrence of `pair` made one, from the left."""
    result: list[str] = []
    for piece in pieces:
        # A piece just merged is longer than the pair's first, so "aaa" makes "aa", "a".
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return result


def encode(word: str, merges: Sequence[Pair]) -> list[str]:
    """The entries that `word` is made of: the earliest merge that applies, again and again."""
    rank = {pair: place for place, pair in enumerate(merges)}
    pieces = list(word)
    while True:
        possible = [p for p in itertools.pairwise(pieces) if p in rank]
        if not possible:
            return pieces
        pieces = merge_pair(pieces, min(possible, key=rank.__getitem__))


def _make_key(ids: dict[str, int]) -> Callable[[Pair], tuple[int, int]]:
    return lambda pair: (ids[pair[0]], ids[pair[1]])
