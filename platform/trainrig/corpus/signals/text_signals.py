"""Signals of a text: the counts and ratios that rules compare with thresholds.

A word is a run of characters without white space; languages without spaces have their own rule
(text_words.py). A line is a non-blank line without the white space around it. A paragraph is a
block of lines up to a blank one. Words and n-grams are compared without case. Ratios are rounded to
1e-4 before any threshold is applied. So a rule decides the same from the text, from stored columns,
and on every machine.

A batch of texts is measured at a time, by compiled loops over flat arrays. Sources of the
definitions: Rae et al. 2021 (arXiv:2112.11446, appendix A1.1 and table A1), Raffel et al. 2020
(JMLR 21:140, section 2.2) and Penedo et al. 2024 (arXiv:2406.17557, section 3). Where these leave a
choice, the module documents it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Int64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.c4_signals import count_c4
from trainrig.corpus.signals.line_signals import (
    count_line_ends,
    find_lines_and_paragraphs,
    measure_repeated,
)
from trainrig.corpus.signals.text_arrays import SYMBOL, TextBatch, build_batch, compute_shares
from trainrig.corpus.signals.text_words import split_words
from trainrig.corpus.signals.word_signals import (
    DUPLICATES,
    TOPS,
    count_stop_words,
    measure_repetition,
)

_NEW_LINE = 0x0A
_HASH = 0x23
_FULL_STOP = 0x2E
_CURLY_BRACKET = 0x7B
_ELLIPSIS = 0x2026


class Marks(NamedTuple):
    """Counts for each text."""

    symbols: Int64s  # characters of Unicode categories P and S
    hashes: Int64s  # "#"
    ellipses: Int64s  # "..." or "…"
    new_lines: Int64s
    curly_brackets: Int64s  # "{"


def count_marks(batch: TextBatch) -> Marks:
    """Count the signs of each text."""
    found = np.zeros((len(Marks._fields), len(batch.starts_D1) - 1), np.int64)
    _count_marks(batch, found)
    return Marks(*found)


@compile_nogil
def _count_marks(batch: TextBatch, found: Int64s) -> None:
    codes, classes, starts = batch
    for text in range(len(starts) - 1):
        symbols = 0
        hashes = 0
        ellipses = 0
        new_lines = 0
        curly_brackets = 0
        dots = 0
        for place in range(starts[text], starts[text + 1]):
            code = codes[place]
            if code == _NEW_LINE:
                new_lines += 1
            if classes[place] & SYMBOL == 0:
                dots = 0
                continue
            symbols += 1
            hashes += code == _HASH
            curly_brackets += code == _CURLY_BRACKET
            dots = dots + 1 if code == _FULL_STOP else 0
            if dots == 3 or code == _ELLIPSIS:
                ellipses += 1
                dots = 0
        found[0, text] = symbols
        found[1, text] = hashes
        found[2, text] = ellipses
        found[3, text] = new_lines
        found[4, text] = curly_brackets


_COUNT = np.dtype(np.int64)
_RATIO = np.dtype(np.float64)

# Column → dtype. All are zero for an empty text. Shares are from 0 to 1.
SIGNALS: dict[str, np.dtype[Any]] = {
    "characters": _COUNT,
    "words": _COUNT,
    "lines": _COUNT,
    "mean_word_length": _RATIO,  # characters
    "hashes_per_word": _RATIO,  # "#"
    "ellipses_per_word": _RATIO,  # "..." or "…"
    "new_lines_per_word": _RATIO,
    "symbols_per_word": _RATIO,  # characters that are punctuation or symbols
    "symbols": _RATIO,  # share of characters that are punctuation or symbols (Unicode P and S)
    "alphabetic_words": _RATIO,  # share of words with at least one letter
    "stop_words": _COUNT,  # number of different stop words of its language (word_signals.py)
    "bullet_lines": _RATIO,  # share of lines that start with a bullet
    "ellipsis_lines": _RATIO,  # share of lines that end with an ellipsis
    "terminal_lines": _RATIO,  # share of lines that end as a sentence does, not in "..."
    "short_lines": _RATIO,  # share of lines of at most 30 characters
    "longest_run_of_equal_lines": _COUNT,
    # sentences on the lines that C4 keeps (c4_signals.py)
    "c4_sentences": _COUNT,
    "c4_sentences_any_end": _COUNT,  # the same without the rule of terminal punctuation
    "lorem_ipsum": _COUNT,  # lines that contain these words
    "curly_brackets": _COUNT,  # number of "{"
    # Shares of repetitions: the first of several equal pieces is not a duplicate.
    "duplicate_lines": _RATIO,
    "duplicate_line_characters": _RATIO,  # share of the lines' characters
    "duplicate_paragraphs": _RATIO,
    "duplicate_paragraph_characters": _RATIO,  # share of the paragraphs' characters
    # Share of the words' characters in the most frequent n-gram of words (of equally frequent
    # ones, the longest); 0 if it occurs once.
    **{f"top_{n}_gram": _RATIO for n in TOPS},
    # Share of the words' characters inside n-grams that occurred before; each word counts once.
    **{f"duplicate_{n}_grams": _RATIO for n in DUPLICATES},
}


def measure(
    texts: Sequence[str], languages: Sequence[str], batch: TextBatch | None = None
) -> dict[str, NDArray[Any]]:
    """Measure every column of SIGNALS for `texts`; `languages` are ISO 639 codes or "".

    A text's signals do not depend on the other texts of the batch. `batch` may be passed if
    `build_batch(texts)` exists already.
    """
    if len(texts) != len(languages):
        raise ValueError(f"{len(texts)} texts, but {len(languages)} languages")
    batch = build_batch(texts) if batch is None else batch
    characters = np.diff(batch.starts_D1)
    words = split_words(batch, languages)
    firsts = words.firsts_D1
    counts = np.diff(firsts)
    word_characters = words.before_W1[firsts[1:]] - words.before_W1[firsts[:-1]]
    lettered = np.concatenate([[0], np.cumsum(words.lettered_W)])
    marks = count_marks(batch)
    line_places, paragraph_places = find_lines_and_paragraphs(batch)
    ends = count_line_ends(batch, line_places)
    lines = measure_repeated(batch, line_places)
    paragraphs = measure_repeated(batch, paragraph_places)
    repetition = measure_repetition(words)
    c4 = count_c4(batch)
    return {
        "characters": characters,
        "words": counts,
        "lines": lines.pieces,
        "mean_word_length": compute_shares(word_characters, counts),
        "hashes_per_word": compute_shares(marks.hashes, counts),
        "ellipses_per_word": compute_shares(marks.ellipses, counts),
        "new_lines_per_word": compute_shares(marks.new_lines, counts),
        "symbols_per_word": compute_shares(marks.symbols, counts),
        "symbols": compute_shares(marks.symbols, characters),
        "alphabetic_words": compute_shares(lettered[firsts[1:]] - lettered[firsts[:-1]], counts),
        "stop_words": count_stop_words(words, languages),
        "bullet_lines": compute_shares(ends.bullets, lines.pieces),
        "ellipsis_lines": compute_shares(ends.ellipses, lines.pieces),
        "terminal_lines": compute_shares(ends.terminals, lines.pieces),
        "short_lines": compute_shares(ends.short, lines.pieces),
        "longest_run_of_equal_lines": lines.longest_run,
        "c4_sentences": c4.sentences,
        "c4_sentences_any_end": c4.sentences_any_end,
        "lorem_ipsum": c4.lorem_ipsum,
        "curly_brackets": marks.curly_brackets,
        "duplicate_lines": compute_shares(lines.duplicates, lines.pieces),
        "duplicate_line_characters": compute_shares(lines.duplicate_characters, lines.characters),
        "duplicate_paragraphs": compute_shares(paragraphs.duplicates, paragraphs.pieces),
        "duplicate_paragraph_characters": compute_shares(
            paragraphs.duplicate_characters, paragraphs.characters
        ),
        **{
            # Overlapping occurrences can be longer in total than the text.
            f"top_{n}_gram": np.minimum(
                1.0, compute_shares(repetition.tops[:, column], word_characters)
            )
            for column, n in enumerate(TOPS)
        },
        **{
            f"duplicate_{n}_grams": compute_shares(
                repetition.duplicates[:, column], word_characters
            )
            for column, n in enumerate(DUPLICATES)
        },
    }
