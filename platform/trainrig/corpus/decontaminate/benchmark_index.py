"""Benchmarks read from JSON Lines files, and the index of their words and n-grams.

The index is one immutable file, which every worker maps into memory.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.config import suggest_choice
from trainrig.corpus.array_files import open_arrays, write_arrays
from trainrig.corpus.array_types import Int64s, UInt8s, UInt32s
from trainrig.corpus.decontaminate import benchmark_words, decontamination_settings
from trainrig.corpus.decontaminate.benchmark_grams import Grams, Hits, find_hits, index_grams
from trainrig.errors import DataError

ENDINGS = (".jsonl", ".jsonl.gz")
NAMED = 10  # most benchmarks listed in an error message
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Examples:
    """The examples of one benchmark."""

    name: str
    lines: tuple[int, ...]  # line of each example in its file, from 1
    texts: tuple[tuple[str, ...], ...]  # texts of each example


def list_benchmarks(
    settings: decontamination_settings.Decontamination,
) -> list[decontamination_settings.Benchmark]:
    """Return all benchmarks: the listed ones, then the files of the folder, sorted by name.

    Raises DataError if the folder holds no benchmark, if a file in it has no `fields`, if two
    benchmarks share a name, or if a threshold names an unknown benchmark.
    """
    found = list(settings.benchmarks)
    if settings.folder is not None:
        found += _list_folder(settings.folder, dict(settings.fields))
    names = [benchmark.name for benchmark in found]
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"decontamination: {names.count(name)} benchmarks are named '{name}'; give each "
                "a different name"
            )
    if isinstance(settings.style, decontamination_settings.Llama3):
        for name in settings.style.thresholds:
            if name not in names:
                raise DataError(
                    f"decontamination: style.thresholds: no benchmark is named '{name}'"
                    f"{suggest_choice(name, names)}"
                )
    return found


def _list_folder(
    folder: str, fields: dict[str, tuple[str, ...]]
) -> list[decontamination_settings.Benchmark]:
    paths = {
        path.rpartition("/")[2].removesuffix(".gz").removesuffix(".jsonl"): path
        for path in storage.list_files(folder)
        if path.endswith(ENDINGS)
    }
    if not paths:
        raise DataError(
            f"{folder}: the folder contains no benchmark, that is no file that ends in .jsonl or "
            ".jsonl.gz"
        )
    for name in fields:
        if name not in paths:
            raise DataError(
                f"{folder}: `fields` names '{name}', but the folder has no such benchmark"
                f"{suggest_choice(name, sorted(paths))}"
            )
    missing = sorted(set(paths) - set(fields))
    if missing:
        told = "; ".join(_format_fields_line(name, paths[name]) for name in missing[:NAMED])
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(
            f"{folder}: `fields` lacks {len(missing)} of its {len(paths)} benchmarks; add a line "
            f"for each, with the fields to use of these fields with text: {told}{more}"
        )
    return [
        decontamination_settings.Benchmark(name=name, path=paths[name], fields=fields[name])
        for name in sorted(paths)
    ]


def _format_fields_line(name: str, path: str) -> str:
    """Return a line for the `fields` setting that lists all text fields of the file at `path`."""
    texts = ", ".join(f'"{key}"' for key in _list_text_fields(next(_read_objects(path))[1]))
    return f"{json.dumps(name)} = [{texts}]"


def fingerprint(settings: decontamination_settings.Decontamination) -> str:
    """Return a fingerprint of the benchmarks: names, fields and contents of their files.

    The settings only name the files, so this fingerprint must be part of the inputs of a run.

    Raises DataError if a file cannot be read.
    """
    found = list_benchmarks(settings)
    paths = [benchmark.path for benchmark in found]
    files = storage.measure_sizes(paths)
    for path in paths:
        if path not in files:
            _read_content(path)  # raises DataError with the cause
    keys = storage.compute_content_keys(paths)
    return manifest.digest(
        [
            (benchmark.name, benchmark.fields, benchmark.joined, key)
            for benchmark, key in zip(found, keys, strict=True)
        ]
    )


def check_examples(settings: decontamination_settings.Decontamination) -> None:
    """Raise DataError if a benchmark cannot be read, hours before its examples are needed."""
    for benchmark in list_benchmarks(settings):
        read_examples(benchmark)


def read_examples(benchmark: decontamination_settings.Benchmark) -> Examples:
    """Return the examples of one benchmark file.

    Raises DataError with the file and line if a line is not a valid example, or if a field is empty
    in all examples.
    """
    lines = []
    texts = []
    seen = dict.fromkeys(benchmark.fields, False)
    for number, row in _read_objects(benchmark.path):
        example: list[str] = []
        for field in benchmark.fields:
            found = [
                text for text in _iterate_texts(row, field, f"{benchmark.path}: line {number}")
            ]
            seen[field] |= any(text.strip() for text in found)
            example += found
        lines.append(number)
        texts.append((" ".join(example),) if benchmark.joined else tuple(example))
    for field, has_text in seen.items():
        if not has_text:
            raise DataError(f"{benchmark.path}: '{field}' is empty in all {len(lines):,} examples")
    return Examples(benchmark.name, tuple(lines), tuple(texts))


def _read_objects(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number (from 1) and the JSON object of each line that is not blank."""
    empty = True
    for number, line in enumerate(
        _read_content(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1
    ):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: line {number}: not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: line {number}: not JSON ({error}); write one JSON object per line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{path}: line {number}: a JSON {type(row).__name__}; write a JSON object"
            )
        empty = False
        yield number, row
    if empty:
        raise DataError(f"{path}: the file is empty; a benchmark has one JSON object per line")


def _read_content(path: str) -> bytes:
    try:
        content = storage.read(path)
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a benchmark is a file of JSON Lines") from None
    except IsADirectoryError:
        raise DataError(
            f"{path}: this is a folder; set `folder` of [decontamination] to it"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _iterate_texts(row: dict[str, Any], field: str, where: str) -> Iterator[str]:
    values: Sequence[Any] = (row,)
    there = False
    for key in field.split("."):
        inner = [value for value in _flatten(values) if isinstance(value, dict) and key in value]
        there = bool(inner)
        values = [value[key] for value in inner]
    if not there:
        known = sorted(_list_text_fields(row))
        raise DataError(f"{where}: the row has no field '{field}'{suggest_choice(field, known)}")
    for value in _flatten(values):
        if isinstance(value, dict | bool):
            raise DataError(f"{where}: '{field}' is a {_IN_JSON[type(value)]}, not a text")
        if value is not None:
            yield str(value)


_IN_JSON = {dict: "table (name a field of it as a.b)", bool: "truth value"}


def _flatten(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def _list_text_fields(row: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the names of all fields of `row` that hold a string; nested fields are named "a.b"."""
    found: dict[str, None] = {}
    for key, value in row.items():
        for inner in _flatten([value]):
            if isinstance(inner, str):
                found[prefix + key] = None
            elif isinstance(inner, dict):
                found |= dict.fromkeys(_list_text_fields(inner, f"{prefix}{key}."))
    return list(found)


_KIND = "benchmark index"


@dataclass(frozen=True)
class Index:
    """The words and n-grams of all benchmarks, concatenated.

    Array suffixes: B is the number of words, P of texts, E of examples.
    """

    settings: decontamination_settings.Decontamination
    names: tuple[str, ...]  # names of the benchmarks
    orders: tuple[int, ...]  # n of each benchmark
    firsts: tuple[int, ...]  # the first example of each benchmark, then the number of all examples
    vocabulary: benchmark_words.WordNumbers
    grams: Grams
    words_B: UInt32s  # vocabulary number of each word
    texts_B: UInt32s  # text of each word
    ends_P: Int64s  # where the words of each text end
    examples_P: UInt32s  # example of each text
    lines_E: Int64s  # line of each example in its file, from 1

    @classmethod
    def of(cls, settings: decontamination_settings.Decontamination) -> "Index":
        """Build the index of all benchmarks that `settings` name.

        The file takes about 40 bytes per benchmark word; building it takes a few times that in
        memory. Raises DataError if a benchmark cannot be read.
        """
        return cls.from_examples(
            settings, [read_examples(benchmark) for benchmark in list_benchmarks(settings)]
        )

    @classmethod
    def from_examples(
        cls, settings: decontamination_settings.Decontamination, benchmarks: Sequence[Examples]
    ) -> "Index":
        """Build the index of benchmarks that are already read."""
        style = settings.style
        texts = [
            text for benchmark in benchmarks for example in benchmark.texts for text in example
        ]
        counts = [len(example) for benchmark in benchmarks for example in benchmark.texts]
        examples_P = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
        words = benchmark_words.split_words(texts)
        sizes_P = np.diff(words.firsts_D1)
        longest_E = np.zeros(len(counts), np.int64)
        np.maximum.at(longest_E, examples_P, sizes_P)
        firsts = np.cumsum([0, *(len(benchmark.texts) for benchmark in benchmarks)]).tolist()
        orders = [
            style.choose_word_count(longest_E[first:end].tolist())
            for first, end in itertools.pairwise(firsts)
        ]
        by_example = np.repeat(np.array(orders, np.int64), np.diff(firsts))
        vocabulary, words_B = benchmark_words.build_vocabulary(words)
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
            decontamination_settings.Decontamination.model_validate(_freeze(facts["settings"])),
            tuple(facts["names"]),
            tuple(facts["orders"]),
            tuple(facts["firsts"]),
            benchmark_words.WordNumbers(
                *(arrays.pop(f"vocabulary.{name}") for name in benchmark_words.WordNumbers._fields)
            ),
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
    ) -> tuple[Hits, benchmark_words.NormalisedWords, UInt32s]:
        """Search `texts` for benchmark n-grams.

        Returns the hits, all words of the texts, and the vocabulary numbers of the words. Words are
        numbered only in texts with a hit.
        """
        words = benchmark_words.split_words(texts)
        hits, numbers = find_hits(self.grams, self.words_B, self.vocabulary, words)
        return hits, words, numbers

    def find_places(self, gram: int) -> UInt32s:
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

    def count_gram_words(self, grams: UInt32s) -> Int64s:
        """Return the number of words (n) of each n-gram."""
        places = self.grams.places[self.grams.firsts_G1[grams]]
        return self.grams.orders_B[places].astype(np.int64)

    def find_benchmark(self, example: int) -> int:
        """Return the number of the benchmark that holds the example."""
        return int(np.searchsorted(self.firsts, example, side="right")) - 1

    @property
    def examples_B(self) -> UInt32s:
        """The example of each word."""
        return self.examples_P[self.texts_B]

    def name_example(self, example: int) -> tuple[str, int]:
        """Return the benchmark's name and the line (from 1) of an example."""
        return self.names[self.find_benchmark(example)], int(self.lines_E[example])


def _compute_orders(firsts_P1: Int64s, orders_P: Int64s, shortest_whole: int) -> UInt8s:
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
