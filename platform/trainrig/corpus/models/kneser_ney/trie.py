"""A trie of n-grams of all orders in flat arrays, which scores texts.

Nodes are numbered level by level: word w is node w, then come the bigrams sorted by their words,
then the trigrams, and so on. The children of a node are adjacent, sorted by their last word, and
end where those of the next node begin.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.models.kneser_ney.ngrams import BEGIN, LONGEST, Ids

NEVER = -100.0  # log10 of probability 0, as in KenLM

Logs = NDArray[np.float32]


class Trie(NamedTuple):
    """n-gram trie that contains all parts of each n-gram, as `estimate` and `arpa` ensure.

    Shapes: T nodes, C of them below the highest order. Logarithms are to base 10.
    """

    words_T: Ids  # last word of each n-gram
    logs_T: Logs  # log probability of the last word after the words before it
    back_offs_C: Logs  # log weight added for a word that never followed this n-gram
    children_C1: NDArray[np.uint32] | NDArray[np.uint64]  # [C + 1] first child; the last entry is T
    levels: NDArray[np.int64]  # [orders + 1] first node of each order; the last entry is T

    @classmethod
    def of(
        cls,
        words: Sequence[Ids],
        logs: Sequence[NDArray[np.float64]],
        back_offs: Sequence[NDArray[np.float64]],
        parents: Sequence[NDArray[np.int64]],
    ) -> Self:
        """Build a trie from the sorted n-grams of each order; `parents` start at order 2."""
        sizes = [len(order_words) for order_words in words]
        begins = np.cumsum([0, *sizes])
        children = [
            np.searchsorted(parent, np.arange(size)) + begin
            for parent, size, begin in zip(parents, sizes, begins[1:], strict=False)
        ]
        first = np.concatenate([*children, begins[-1:]])
        return cls(
            np.concatenate(words),
            np.concatenate(logs).astype(np.float32),
            np.concatenate([*back_offs, np.empty(0)]).astype(np.float32),
            first.astype(np.uint32) if begins[-1] < 2**32 else first.astype(np.uint64),
            begins.astype(np.int64),
        )

    @property
    def order(self) -> int:
        """The number of words in the longest n-grams."""
        return len(self.levels) - 1

    def score(self, stream: Ids) -> Logs:
        """Compute the log10 probability of each word of whole sentences `<s> word … </s>`.

        Each word is conditioned on the words before it; the value of each `<s>` is 0.
        """
        found = np.zeros(len(stream), np.float32)
        _score(self.words_T, self.logs_T, self.back_offs_C, self.children_C1, stream, found)
        return found

    def iterate_grams(self, order: int) -> Iterator[tuple[Ids, Logs, Logs]]:
        """Yield the n-grams of one order in batches: words [n, M], log probabilities, back-offs."""
        first = int(self.levels[order - 1])
        last = int(self.levels[order])
        step = 1_000_000
        for begin in range(first, last, step):
            nodes = np.arange(begin, min(begin + step, last))
            logs = self.logs_T[nodes]
            back_offs = self.back_offs_C[nodes] if order < self.order else np.zeros_like(logs)
            words = np.empty((order, len(nodes)), np.uint32)
            for place in range(order - 1, -1, -1):
                words[place] = self.words_T[nodes]
                if place:
                    nodes = np.searchsorted(self.children_C1, nodes, side="right") - 1
            yield words, logs, back_offs


@compile_nogil
def _find_child(words: Ids, begin: np.int64, end: np.int64, word: np.int64) -> np.int64 | int:
    """Return the node among `begin` to `end` whose last word is `word`, or -1."""
    last = end
    while begin < end:
        middle = (begin + end) // 2
        if words[middle] < word:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < last and words[begin] == word else -1


@compile_nogil
def _score(
    words: Ids,
    logs: Logs,
    back_offs: Logs,
    children: NDArray[np.uint32] | NDArray[np.uint64],
    stream: Ids,
    found: Logs,
) -> None:
    inner = len(back_offs)
    # Nodes of the last word, the last two words, and so on, as far as the model contains them.
    nodes = np.empty(LONGEST, np.int64)
    longer = np.empty(LONGEST, np.int64)
    known = 0
    for place in range(len(stream)):
        word = np.int64(stream[place])
        if word == BEGIN:
            nodes[0] = word
            known = 1 if word < inner else 0
            continue
        longer[0] = word
        matched = 1
        while matched <= known:
            node = nodes[matched - 1]
            child = _find_child(words, np.int64(children[node]), np.int64(children[node + 1]), word)
            if child < 0:
                break
            longer[matched] = child
            matched += 1
        total = np.float64(logs[longer[matched - 1]])
        for missed in range(matched, known + 1):
            total += np.float64(back_offs[nodes[missed - 1]])
        found[place] = total
        known = 0
        while known < matched and longer[known] < inner:
            nodes[known] = longer[known]
            known += 1
