"""Reader of compressed fastText classifiers, and the likelihoods of their labels.

The format of compressed models (`.ftz`) follows fastText's reader (0.9, `FastText::loadModel`):
little-endian, one part after another: settings; words and labels with their counts; the kept
n-grams; the quantised rows (product quantisation: Jégou et al. 2011; Joulin et al. 2016,
arXiv:1612.03651); and the plain output matrix. Labels are leaves of a Huffman tree (fastText's
hierarchical softmax).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Float32s, Float64s, Int32s, Int64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.errors import DataError

_FTZ_MAGIC = 793712314
_FTZ_VERSION = 12
_SETTINGS_LAYOUT = struct.Struct("<12id")
_COUNTS_LAYOUT = struct.Struct("<3i2q")
_ENTRY_LAYOUT = struct.Struct("<qb")
_SHAPE_LAYOUT = struct.Struct("<2q")
_CENTROIDS = 256
_HIERARCHICAL_SOFTMAX = 1
_SUPERVISED = 3
_LABEL_PREFIX = "__label__"


@dataclass(frozen=True)
class FastTextModel:
    """A text classifier. Shapes: R rows, C channels, L labels."""

    # words of the first rows; None: not valid UTF-8, so no text contains it
    words: list[str | None]
    labels: list[str]
    label_counts: list[int]  # most frequent first
    rows_RC: Float32s  # rows of the words, then of the n-grams
    n_gram_rows: Int32s  # [buckets] row of the n-grams with this hash, or -1
    output_LC: Float32s  # rows of the tree's inner nodes; the last is unused
    shortest: int  # characters of an n-gram, including the word's borders
    longest: int


class _Cursor:
    """Reader of consecutive parts of a file's bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        found = layout.unpack_from(self.data, self.place)
        self.place += layout.size
        return found

    def read_array(self, dtype: str, count: int) -> NDArray[np.generic]:
        found = np.frombuffer(self.data, dtype, count, self.place)
        self.place += found.nbytes
        return found

    def read_byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def read_line(self) -> bytes:
        end = self.data.index(b"\0", self.place)
        found = self.data[self.place : end]
        self.place = end + 1
        return found


def read_model(path: Path) -> FastTextModel:
    """Read the model at `path`. Raises DataError if it is not a model of this kind."""
    try:
        return _parse_model(_Cursor(path.read_bytes()), path)
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(f"{path} is not a complete fastText model: {error}") from None


def _parse_model(cursor: _Cursor, path: Path) -> FastTextModel:
    if cursor.take(struct.Struct("<2i")) != (_FTZ_MAGIC, _FTZ_VERSION):
        raise DataError(f"{path} is not a fastText model of version {_FTZ_VERSION}")
    settings = cursor.take(_SETTINGS_LAYOUT)
    word_n_grams, loss, kind, buckets, shortest, longest = settings[5:11]
    if (word_n_grams, loss, kind) != (1, _HIERARCHICAL_SOFTMAX, _SUPERVISED):
        raise DataError(f"{path} is not a supervised model of words with hierarchical softmax")
    entries, _, _, _, pruned = cursor.take(_COUNTS_LAYOUT)
    words = []
    labels = []
    label_counts = []
    for _ in range(entries):
        name = cursor.read_line()
        count, is_label = cursor.take(_ENTRY_LAYOUT)
        if is_label:
            labels.append(name.decode().removeprefix(_LABEL_PREFIX))
            label_counts.append(count)
        else:
            words.append(_decode_name(name))
    n_gram_rows = np.full(buckets, -1, np.int32)
    kept = cursor.read_array("<i4", 2 * pruned).reshape(-1, 2).astype(np.int32)
    n_gram_rows[kept[:, 0]] = kept[:, 1] + len(words)
    if not cursor.read_byte():
        raise DataError(f"{path} is not a compressed model (.ftz)")
    rows = _read_quantised_matrix(cursor)
    if cursor.read_byte():
        raise DataError(f"{path} has a quantised output matrix, which trainrig cannot read")
    height, width = cursor.take(_SHAPE_LAYOUT)
    output = cursor.read_array("<f4", height * width).reshape(height, width).astype(np.float32)
    return FastTextModel(
        words, labels, label_counts, rows, n_gram_rows, output, int(shortest), int(longest)
    )


def _decode_name(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _read_quantised_matrix(cursor: _Cursor) -> Float32s:
    has_norms = cursor.read_byte()
    height, _ = cursor.take(_SHAPE_LAYOUT)
    (codes_size,) = cursor.take(struct.Struct("<i"))
    codes = cursor.read_array("u1", codes_size).reshape(height, -1)
    rows = _decode_centroids(codes, cursor)
    if has_norms:
        norms = cursor.read_array("u1", height).reshape(height, 1)
        rows = rows * _decode_centroids(norms, cursor)
    return np.ascontiguousarray(rows)


def _decode_centroids(codes: NDArray[np.generic], cursor: _Cursor) -> Float32s:
    """Decode rows of centroids: one code per run of channels, of which the last may be shorter."""
    channels, runs, run, last_run = cursor.take(struct.Struct("<4i"))
    centroids = cursor.read_array("<f4", channels * _CENTROIDS).astype(np.float32)
    parts = []
    for number in range(runs):
        width = run if number < runs - 1 else last_run
        first = number * _CENTROIDS * run
        table = centroids[first : first + _CENTROIDS * width].reshape(_CENTROIDS, width)
        parts.append(table[codes[:, number].astype(np.int64)])
    return np.concatenate(parts, axis=1)


_LOG_FLOOR = 1e-5  # fastText adds this to each factor before it takes logarithms


class LabelTree(NamedTuple):
    """Nodes of the tree: leaves are the labels, 0 to L - 1; then inner nodes, the root last."""

    left: Int64s  # [2L - 1]; -1 at leaves
    right: Int64s


def build_label_tree(counts: Sequence[int]) -> LabelTree:
    """Build the Huffman tree of labels with these descending `counts`."""
    leaves = len(counts)
    weights = [*counts, *[0] * (leaves - 1)]
    tree = LabelTree(np.full(len(weights), -1, np.int64), np.full(len(weights), -1, np.int64))
    # the lightest leaf and the lightest inner node not joined yet
    leaf = leaves - 1
    inner = leaves
    for node in range(leaves, len(weights)):
        joined = []
        for _ in range(2):
            # Ties go to the inner node, or to the leaf if there is no inner node yet.
            if leaf >= 0 and (inner == node or weights[leaf] < weights[inner]):
                joined.append(leaf)
                leaf -= 1
            else:
                joined.append(inner)
                inner += 1
        tree.left[node], tree.right[node] = joined
        weights[node] = weights[joined[0]] + weights[joined[1]]
    return tree


@compile_nogil
def find_likeliest(
    left: Int64s,
    right: Int64s,
    output: Float32s,
    vector: Float32s,
    likelihoods: Float64s,
) -> int:
    """Return the most likely label of `vector`; fill `likelihoods` [2L - 1] of all nodes."""
    leaves = (len(left) + 1) // 2
    root = len(left) - 1
    likelihoods[root] = 1.0
    for node in range(root, leaves - 1, -1):  # parents before children
        score = np.float32(0.0)
        for channel in range(len(vector)):
            score += output[node - leaves, channel] * vector[channel]
        rightward = 1.0 / (1.0 + np.exp(-np.float64(score)))
        likelihoods[left[node]] = likelihoods[node] * (1.0 - rightward + _LOG_FLOOR)
        likelihoods[right[node]] = likelihoods[node] * (rightward + _LOG_FLOOR)
    best = 0
    for label in range(leaves):
        if likelihoods[label] > likelihoods[best]:
            best = label
    return best
