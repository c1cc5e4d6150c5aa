"""n-grams of all orders as a trie in flat arrays, and the scoring of texts by it.

Nodes are numbered level by level: the word w is node w, the bigrams follow in the order of their
words, then the trigrams, … So the children of a node lie side by side, sorted by their last word,
and end where those of the next node begin.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.models.kneser_ney.ngrams import BEGIN, LONGEST, Ids

NEVER = -100.0  # log10 of what has no probability, or leaves none, as KenLM takes it

Logs = NDArray[np.float32]


class Trie(NamedTuple):
    """Every n-gram stands there with all its parts, as `estimate` and `arpa` see to.

    T nodes, C of them with an order below the highest. Logarithms are to base 10.
    """

    words_T: Ids  # the last word of each
    logs_T: Logs  # of the probability of the last word after those before
    back_offs_C: Logs  # what a word costs that never came after this n-gram
    children_C1: NDArray[np.uint32] | NDArray[np.uint64]  # [C + 1] the first child; the last is T
    levels: NDArray[np.int64]  # [orders + 1] the first node of each order; the last is T

    @classmethod
    def of(
        cls,
        words: Sequence[Ids],
        logs: Sequence[NDArray[np.float64]],
        back_offs: Sequence[NDArray[np.float64]],
        parents: Sequence[NDArray[np.int64]],
    ) -> Self:
        """From the n-grams of each order, sorted; `parents` of those of order 2 and above."""
        sizes = [len(each) for each in words]
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
        """Words in the longest n-grams."""
        return len(self.levels) - 1

    def score(self, stream: Ids) -> Logs:
        """The log10 of the probability of each word of whole sentences, `<s> word … </s>`, after
        those before it; 0 for each `<s>`."""
        found = np.zeros(len(stream), np.float32)
        _score(self.words_T, self.logs_T, self.back_offs_C, self.children_C1, stream, found)
        return found

    def iterate_grams(self, order: int) -> Iterator[tuple[Ids, Logs, Logs]]:
        """The n-grams of one order, some at a time: words [n, M], logarithms, back-offs."""
        first, last = int(self.levels[order - 1]), int(self.levels[order])
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
    """The node among `begin` to `end` that ends with `word`, or -1."""
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
    # The nodes of the last word, the last two, …, as far as the model has them.
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
