"""The ARPA format of n-gram models, as KenLM, SRILM and others read and write it, or gzipped.

A file has a section `data` (how many n-grams of each order), and for each order a section with a
line per n-gram: log10 of the probability, tab, words, tab, log10 of the back-off.

Other tools may omit an n-gram that is part of a listed longer one. Such an n-gram is added here
with the value that backing off gives, so that scores stay the same.
"""

import gzip
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.array_types import Float64s
from trainrig.corpus.models import ngram_counts
from trainrig.corpus.models.kneser_ney import NEVER, Trie
from trainrig.errors import DataError

ENDINGS = (".arpa", ".arpa.gz")


def write_arpa(path: str, trie: Trie, vocabulary: Sequence[str]) -> None:
    """Write the model, gzipped if `path` ends with .gz. Nine digits represent a float32 exactly."""
    words = np.array([word.encode() for word in vocabulary], object)
    with storage.atomic_file(path) as temporary, open(temporary, "wb") as file:  # noqa: PTH123
        # no name and no time in the header, so that the bytes are reproducible
        if path.endswith(".gz"):
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                _write(cast(BinaryIO, packed), trie, words)
        else:
            _write(file, trie, words)


def _write(file: BinaryIO, trie: Trie, words: NDArray[np.object_]) -> None:
    sizes = np.diff(trie.levels)
    file.write(b"\\data\\\n")
    for order, size in enumerate(sizes, 1):
        file.write(b"ngram %d=%d\n" % (order, size))
    for order in range(1, trie.order + 1):
        file.write(b"\n\\%d-grams:\n" % order)
        for ids_nM, logs, back_offs in trie.iterate_grams(order):
            grams = map(b" ".join, zip(*words[ids_nM], strict=True))
            rows = zip(grams, logs.tolist(), back_offs.tolist(), strict=True)
            if order < trie.order:
                file.writelines(b"%.9g\t%s\t%.9g\n" % (p, gram, b) for gram, p, b in rows)
            else:
                file.writelines(b"%.9g\t%s\n" % (p, gram) for gram, p, _ in rows)
    file.write(b"\n\\end\\\n")


class _Level(NamedTuple):
    words_nM: ngram_counts.Ids
    logs_M: Float64s
    back_offs_M: Float64s


def read_arpa(path: str) -> tuple[Trie, list[str]]:
    """Read a model and its vocabulary, which begins with `<unk>`, `<s>` and `</s>`.

    Raises DataError if the file is missing or not a valid ARPA model.
    """
    with _open_lines(path) as lines:
        sizes = _read_sizes(path, lines)
        ids = {word.encode(): number for number, word in enumerate(ngram_counts.SPECIAL)}
        levels = [_read_level(path, lines, n, size, ids) for n, size in enumerate(sizes, 1)]
    vocabulary = [word.decode("utf-8", "replace") for word in ids]
    levels[0] = _index_lowest(levels[0], len(ids))
    for n in range(len(levels) - 1, 1, -1):
        levels[n - 1] = _add_missing_parts(levels[n - 1], levels[n])
    for n in range(1, len(levels)):
        levels[n] = _fill_by_backoff(levels[n], levels[n - 1])
    return _build_trie(levels), vocabulary


@contextmanager
def _open_lines(path: str) -> Iterator[Iterator[tuple[int, bytes]]]:
    try:
        with storage.open_read(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
            yield ((number, line.strip()) for number, line in enumerate(stream, 1))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; name an ARPA model, gzipped or not") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated ({error}); copy or write it again") from None


def _read_sizes(path: str, lines: Iterator[tuple[int, bytes]]) -> list[int]:
    for _, line in itertools.islice(lines, 100):
        if line == b"\\data\\":
            break
    else:
        raise DataError(f"{path} is not an ARPA model: its first lines have no \\data\\")
    sizes: list[int] = []
    for number, line in lines:
        if not line:
            if sizes:
                break
            continue
        name, _, size = line.partition(b"=")
        if name.split() != [b"ngram", b"%d" % (len(sizes) + 1)] or not size.strip().isdigit():
            raise DataError(
                f"{path}:{number}: expected ngram {len(sizes) + 1}=…, found `{_shorten_line(line)}`"
            )
        sizes.append(int(size))
    if not 1 <= len(sizes) <= ngram_counts.LONGEST:
        raise DataError(
            f"{path} has order {len(sizes)}; trainrig reads orders 1 to {ngram_counts.LONGEST}"
        )
    if sizes[0] > ngram_counts.MOST_WORDS - len(ngram_counts.SPECIAL):
        raise DataError(
            f"{path} has {sizes[0]:,} words, above the limit of "
            f"{ngram_counts.MOST_WORDS - len(ngram_counts.SPECIAL):,}"
        )
    return sizes


def _read_level(
    path: str, lines: Iterator[tuple[int, bytes]], order: int, size: int, ids: dict[bytes, int]
) -> _Level:
    level = _Level(np.empty((order, size), np.uint32), np.empty(size), np.zeros(size))
    for number, line in lines:
        if line:
            if line != b"\\%d-grams:" % order:
                raise DataError(
                    f"{path}:{number}: expected \\{order}-grams:, found `{_shorten_line(line)}`"
                )
            break
    place = 0
    for number, line in lines:
        if not line:
            break
        fields = line.split()
        try:
            level.logs_M[place] = float(fields[0])
            for nth in range(order):
                level.words_nM[nth, place] = _find_id(ids, fields[nth + 1], new=order == 1)
            level.back_offs_M[place] = float(fields[order + 1]) if fields[order + 1 :] else 0.0
        except (ValueError, IndexError):
            raise DataError(
                f"{path}:{number}: `{_shorten_line(line)}` is not a number, {order} words and, "
                f"below the highest order, a number; or the section has more than {size:,} lines"
            ) from None
        except KeyError as error:
            word = error.args[0].decode("utf-8", "replace")
            raise DataError(f"{path}:{number}: `{word}` is not among its 1-grams") from None
        place += 1
    if place != size:
        raise DataError(
            f"{path} has {place:,} {order}-grams, but states {size:,}; it may be truncated"
        )
    return level


def _find_id(ids: dict[bytes, int], word: bytes, new: bool) -> int:
    if not new:
        return ids[word]
    return ids.setdefault(b"<unk>" if word == b"<UNK>" else word, len(ids))


def _shorten_line(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= 60 else text[:57] + "..."


def _index_lowest(level: _Level, vocabulary: int) -> _Level:
    """Index the 1-grams by word id. The value of `<s>` is ignored, as it is never predicted."""
    logs = np.full(vocabulary, NEVER)
    logs[ngram_counts.BEGIN] = 0.0
    back_offs = np.zeros(vocabulary)
    predicted = level.words_nM[0] != ngram_counts.BEGIN
    logs[level.words_nM[0, predicted]] = level.logs_M[predicted]
    back_offs[level.words_nM[0]] = level.back_offs_M
    back_offs[ngram_counts.UNKNOWN] = (
        0.0 if ngram_counts.UNKNOWN not in level.words_nM[0] else back_offs[ngram_counts.UNKNOWN]
    )
    return _Level(np.arange(vocabulary, dtype=np.uint32)[None], logs, back_offs)


def _add_missing_parts(level: _Level, above: _Level) -> _Level:
    """Add to `level` the parts of the n-grams `above` that it lacks, with unknown values (NaN)."""
    order = len(level.words_nM)
    parts = np.concatenate([above.words_nM[:-1], above.words_nM[1:]], axis=1)
    there = np.concatenate([level.words_nM, parts], axis=1)
    _, firsts = np.unique(there, axis=1, return_index=True)
    missing = np.sort(firsts[firsts >= level.words_nM.shape[1]])
    if not len(missing):
        return level
    count = len(missing)
    return _Level(
        np.concatenate([level.words_nM, there[:order, missing]], axis=1),
        np.concatenate([level.logs_M, np.full(count, np.nan)]),
        np.concatenate([level.back_offs_M, np.zeros(count)]),
    )


def _fill_by_backoff(level: _Level, below: _Level) -> _Level:
    """Fill unknown values (NaN) of `level` with those that backing off to `below` gives."""
    unknown = np.flatnonzero(np.isnan(level.logs_M))
    if not len(unknown):
        return level
    place = {
        words: number for number, words in enumerate(zip(*below.words_nM.tolist(), strict=True))
    }
    logs = level.logs_M.copy()
    for number in unknown:
        words = tuple(level.words_nM[:, number].tolist())
        context = place[words[:-1]]
        shorter = place[words[1:]]
        logs[number] = below.back_offs_M[context] + below.logs_M[shorter]
    return level._replace(logs_M=logs)


def _build_trie(levels: Sequence[_Level]) -> Trie:
    sorted_levels = []
    for level in levels:
        order = ngram_counts.sort_places(ngram_counts.pack(level.words_nM))
        words, logs, back_offs = level
        sorted_levels.append(_Level(words[:, order], logs[order], back_offs[order]))
    parents = [
        ngram_counts.find_contexts(level.words_nM, below.words_nM)
        for below, level in itertools.pairwise(sorted_levels)
    ]
    return Trie.of(
        [level.words_nM[-1] for level in sorted_levels],
        [level.logs_M for level in sorted_levels],
        [level.back_offs_M for level in sorted_levels[:-1]],
        parents,
    )
