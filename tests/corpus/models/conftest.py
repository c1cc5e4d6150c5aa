"""A small model of a few sentences, for tests of estimation, files and scores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trainrig.corpus.models.kneser_ney import Estimated, estimate
from trainrig.corpus.models.ngram_counts import SPECIAL, Counter, build_levels

TEXT = [
    line.split() for line in ("a b a b", "a b c", "b a", "a b a c a", "c", "a a b b", "d e a b")
]


class Trained:
    """A language model of a few sentences, with lookups by word."""

    def __init__(
        self,
        text: Sequence[Sequence[str]],
        order: int,
        folder: Path,
        least: Sequence[int] | None = None,
        chunk: int = 1_000,
    ) -> None:
        self.vocabulary = [*SPECIAL, *sorted({word for line in text for word in line})]
        self.ids = {word: number for number, word in enumerate(self.vocabulary)}
        counter = Counter(order, folder, chunk)
        for line in text:
            counter.add(self.stream(line))
        found = build_levels(*counter.sum_counts(), len(self.vocabulary))
        self.estimated: Estimated = estimate(found, least or [1] * order)
        self.trie = self.estimated.trie

    def stream(self, line: Sequence[str]) -> np.ndarray:
        return np.array([1, *(self.ids.get(word, 0) for word in line), 2], np.uint32)

    def score(self, line: Sequence[str]) -> float:
        return float(self.trie.score(self.stream(line)).sum(dtype=np.float64))

    def total(self, context: Sequence[str]) -> float:
        """Return the summed probabilities of all words after `context` at a sentence's start."""
        after = [number for number in range(len(self.vocabulary)) if number != 1]
        streams = [[1, *(self.ids.get(word, 0) for word in context), number] for number in after]
        logs = self.trie.score(np.array(streams, np.uint32).ravel())
        return float((10.0 ** logs.reshape(len(after), -1)[:, -1].astype(np.float64)).sum())


@pytest.fixture(scope="session")
def trained() -> type[Trained]:
    """Return the class of models: `trained(sentences, order, folder)`."""
    return Trained


@pytest.fixture(scope="session")
def text() -> list[list[str]]:
    """Return a few sentences."""
    return TEXT
