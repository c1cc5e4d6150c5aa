"""Index of all benchmarks in one immutable file, which every worker maps into memory."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.decontaminate.benchmarks import Examples, list_benchmarks, read_examples
from trainrig.corpus.decontaminate.grams import Grams, Hits, find_hits, index_grams
from trainrig.corpus.decontaminate.settings import Decontamination
from trainrig.corpus.decontaminate.vocabulary import WordNumbers, build_vocabulary
from trainrig.corpus.decontaminate.words import NormalisedWords, split_words
from trainrig.corpus.models.array_file import open_arrays, write_arrays

_KIND = "benchmark index"


@dataclass(frozen=True)
class Index:
    """The words and n-grams of all benchmarks, concatenated.

    Array suffixes: B is the number of words, P of texts, E of examples.
    """

    settings: Decontamination
    names: tuple[str, ...]  # names of the benchmarks
    orders: tuple[int, ...]  # n of each benchmark
    firsts: tuple[int, ...]  # the first example of each benchmark, then the number of all examples
    vocabulary: WordNumbers
    grams: Grams
    words_B: NDArray[np.uint32]  # vocabulary number of each word
    texts_B: NDArray[np.uint32]  # text of each word
    ends_P: NDArray[np.int64]  # where the words of each text end
    examples_P: NDArray[np.uint32]  # example of each text
    lines_E: NDArray[np.int64]  # line of each example in its file, from 1

    @classmethod
    def of(cls, settings: Decontamination) -> "Index":
        """Build the index of all benchmarks that `settings` name.

        The file takes about 40 bytes per benchmark word; building it takes a few times that in
        memory. Raises DataError if a benchmark cannot be read.
        """
        return cls.from_examples(
            settings, [read_examples(benchmark) for benchmark in list_benchmarks(settings)]
        )

    @classmethod
    def from_examples(cls, settings: Decontamination, benchmarks: Sequence[Examples]) -> "Index":
        """Build the index of benchmarks that are already read."""
        style = settings.style
        texts = [
            text for benchmark in benchmarks for example in benchmark.texts for text in example
        ]
        counts = [len(example) for benchmark in benchmarks for example in benchmark.texts]
        examples_P = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
        words = split_words(texts)
        sizes_P = np.diff(words.firsts_D1)
        longest_E = np.zeros(len(counts), np.int64)
        np.maximum.at(longest_E, examples_P, sizes_P)
        firsts = np.cumsum([0, *(len(benchmark.texts) for benchmark in benchmarks)]).tolist()
        orders = [
            style.choose_word_count(longest_E[first:end].tolist())
            for first, end in itertools.pairwise(firsts)
        ]
        by_example = np.repeat(np.array(orders, np.int64), np.diff(firsts))
        vocabulary, words_B = build_vocabulary(words)
        orders_B = _compute_orders(words.firsts_D1, by_example[examples_P], style.shortest_whole)
        index = cls(
            settings,
            tuple(benchmark.name for benchmark in benchmarks),
            tuple(orders),
            tuple(firsts),
            vocabulary,
            index_grams(words_B, orders_B, vocabulary.hashes_V),
            words_B,
            np.repeat(np.arange(len(texts), dtype=np.uint32), sizes_P),
            words.firsts_D1[1:],
            examples_P,
            np.array([line for benchmark in benchmarks for line in benchmark.lines], np.int64),
        )
        for array in index.collect_arrays().values():
            # mapped arrays are read-only too, so one compilation serves both
            array.setflags(write=False)
        return index

    def save(self, path: str) -> None:
        """Write the index to `path`.

        Equal benchmarks under equal settings give equal bytes.
        """
        facts = {
            "settings": self.settings.model_dump(mode="json"),
            "names": self.names,
            "orders": self.orders,
            "firsts": self.firsts,
        }
        write_arrays(path, _KIND, self.collect_arrays(), facts)

    @classmethod
    def load(cls, path: str) -> "Index":
        """Map an index written by `save` into memory.

        Raises DataError if the file is not a benchmark index.
        """
        arrays, facts = open_arrays(path, _KIND)
        return cls(
            Decontamination.model_validate(_freeze(facts["settings"])),
            tuple(facts["names"]),
            tuple(facts["orders"]),
            tuple(facts["firsts"]),
            WordNumbers(*(arrays.pop(f"vocabulary.{name}") for name in WordNumbers._fields)),
            Grams(*(arrays.pop(f"grams.{name}") for name in Grams._fields)),
            **arrays,
        )

    def collect_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays of the index, keyed by name."""
        return {
            **{f"vocabulary.{name}": array for name, array in self.vocabulary._asdict().items()},
            **{f"grams.{name}": array for name, array in self.grams._asdict().items()},
            "words_B": self.words_B,
            "texts_B": self.texts_B,
            "ends_P": self.ends_P,
            "examples_P": self.examples_P,
            "lines_E": self.lines_E,
        }

    def search_texts(
        self, texts: Sequence[str]
    ) -> tuple[Hits, NormalisedWords, NDArray[np.uint32]]:
        """Search `texts` for benchmark n-grams.

        Returns the hits, all words of the texts, and the vocabulary numbers of the words. Words are
        numbered only in texts with a hit.
        """
        words = split_words(texts)
        hits, numbers = find_hits(self.grams, self.words_B, self.vocabulary, words)
        return hits, words, numbers

    def find_places(self, gram: int) -> NDArray[np.uint32]:
        """Return the word positions in the benchmarks at which the n-gram begins, ascending."""
        first, end = self.grams.firsts_G1[gram : gram + 2]
        return self.grams.places[first:end]

    def format_gram(self, gram: int) -> str:
        """Return the normalised words of an n-gram, joined by spaces."""
        place = self.find_places(gram)[0]
        known = self.vocabulary
        found = []
        for word in self.words_B[place : place + self.grams.orders_B[place]].tolist():
            begin = known.ends_V[word - 1] if word else 0
            letters = known.letters[begin : known.ends_V[word]]
            found.append(letters.tobytes().decode("utf-32-le", "surrogatepass"))
        return " ".join(found)

    def count_gram_words(self, grams: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the number of words (n) of each n-gram."""
        places = self.grams.places[self.grams.firsts_G1[grams]]
        return self.grams.orders_B[places].astype(np.int64)

    def find_benchmark(self, example: int) -> int:
        """Return the number of the benchmark that holds the example."""
        return int(np.searchsorted(self.firsts, example, side="right")) - 1

    @property
    def examples_B(self) -> NDArray[np.uint32]:
        """The example of each word."""
        return self.examples_P[self.texts_B]

    def name_example(self, example: int) -> tuple[str, int]:
        """Return the benchmark's name and the line (from 1) of an example."""
        return self.names[self.find_benchmark(example)], int(self.lines_E[example])


def _compute_orders(
    firsts_P1: NDArray[np.int64], orders_P: NDArray[np.int64], shortest_whole: int
) -> NDArray[np.uint8]:
    """Return n of the n-gram that begins at each word, or 0 if none does.

    A text of fewer than n words, but at least `shortest_whole`, is one n-gram as a whole.
    """
    sizes = np.diff(firsts_P1)
    whole = (sizes >= shortest_whole) & (sizes < orders_P)
    orders = np.where(whole, sizes, orders_P)
    # number of words from each word to the end of its text
    before_end = np.repeat(firsts_P1[1:], sizes) - np.arange(firsts_P1[-1])
    order_of_word = np.repeat(orders, sizes)
    return np.where(before_end >= order_of_word, order_of_word, 0).astype(np.uint8)


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _freeze(inner) for key, inner in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, list) else value
