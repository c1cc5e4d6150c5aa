"""A reference implementation of byte-pair encoding, slow and simple, for tests.

The input is words, each a string of characters; a merge never crosses words. Each round merges the
most common pair of neighbours everywhere, from left to right. The tie rule chooses among equally
common pairs:

- "first_seen": the pair that occurs first in the words as given (Sennrich et al. 2016,
  arXiv:1508.07909, whose program keeps pairs in the order of their first occurrence);
- "lowest_pair_id": the pair with the lower first id, then the lower second id, as in the tokenizers
  library. Ids number the alphabet, sorted by code point, and then the merges in their order.
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
    """Return the first `merges` merges, or fewer if every word is a single entry before that.

    `alphabet` lists characters that have ids, in addition to those of the words.
    """
    count_of = Counter(words)  # keeps the order in which words are first seen
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
    """Return `pieces` with each occurrence of `pair` merged, from left to right."""
    result: list[str] = []
    for piece in pieces:
        # A piece that was just merged is longer than the pair's first: "aaa" becomes "aa", "a".
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return result


def encode(word: str, merges: Sequence[Pair]) -> list[str]:
    """Return the entries of `word`, by repeatedly applying the earliest merge that is possible."""
    rank = {pair: place for place, pair in enumerate(merges)}
    pieces = list(word)
    while True:
        possible = [p for p in itertools.pairwise(pieces) if p in rank]
        if not possible:
            return pieces
        pieces = merge_pair(pieces, min(possible, key=rank.__getitem__))


def _make_key(ids: dict[str, int]) -> Callable[[Pair], tuple[int, int]]:
    return lambda pair: (ids[pair[0]], ids[pair[1]])
