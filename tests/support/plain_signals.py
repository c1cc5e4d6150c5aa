"""The signals in plain Python, one text at a time, to compare the compiled ones with."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})  # Gopher's list
SHORT_LINE = 30  # characters; FineWeb's limit
_BULLET = re.compile(r"[•‣▶◀◦■□▪▫●○·]|[-*–+]\s")
_TERMINAL = (".", "!", "?", '"', "”", "'", "’", "»", "。", "！", "？", "।", "؟")
_ELLIPSES = ("...", "…")
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_NEITHER_WORD_NOR_SPACE = re.compile(r"[^\w\s]")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd


@dataclass(frozen=True)
class Signals:
    """Numbers about one text, all zero for an empty one; shares are between 0 and 1."""

    characters: int
    words: int
    lines: int
    mean_word_length: float  # characters
    hashes_per_word: float  # "#"
    ellipses_per_word: float  # "..." or "…"
    symbols: float  # share of characters that are punctuation or symbols (Unicode P and S)
    alphabetic_words: float  # share of words with at least one letter
    stop_words: int  # how many different ones of STOP_WORDS
    bullet_lines: float  # share of lines that start with a bullet
    ellipsis_lines: float  # share of lines that end with an ellipsis
    terminal_lines: float  # share of lines that end as a sentence does, not in "..."
    short_lines: float  # share of lines of at most SHORT_LINE characters
    longest_run_of_equal_lines: int
    # Shares of pieces that repeat an earlier one; the first of several equals is no duplicate.
    duplicate_lines: float
    duplicate_line_characters: float  # share of the lines' characters
    duplicate_paragraphs: float
    duplicate_paragraph_characters: float  # share of the paragraphs' characters
    # Share of the words' characters in the most frequent n-gram of words (of equally frequent
    # ones, the longest); 0 if it occurs once.
    top_2_gram: float
    top_3_gram: float
    top_4_gram: float
    # Share of the words' characters inside n-grams that repeat an earlier one, each word counted
    # once.
    duplicate_5_grams: float
    duplicate_6_grams: float
    duplicate_7_grams: float
    duplicate_8_grams: float
    duplicate_9_grams: float
    duplicate_10_grams: float


def measure(text: str) -> Signals:
    """Return the signals of `text`, ignoring case where words or n-grams are compared."""
    words = text.lower().split()
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    paragraphs = [
        paragraph for paragraph in map(str.strip, _PARAGRAPH_END.split(text)) if paragraph
    ]
    duplicate_lines, duplicate_line_characters = _duplicates(lines)
    duplicate_paragraphs, duplicate_paragraph_characters = _duplicates(paragraphs)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return Signals(
        characters=len(text),
        words=len(words),
        lines=len(lines),
        mean_word_length=_share(int(lengths.sum()), len(words)),
        hashes_per_word=_share(text.count("#"), len(words)),
        ellipses_per_word=_share(sum(map(text.count, _ELLIPSES)), len(words)),
        symbols=_share(_symbols(text), len(text)),
        alphabetic_words=_share(sum(map(_has_letter, words)), len(words)),
        stop_words=len(STOP_WORDS.intersection(words)),
        bullet_lines=_share(sum(1 for line in lines if _BULLET.match(line)), len(lines)),
        ellipsis_lines=_share(sum(line.endswith(_ELLIPSES) for line in lines), len(lines)),
        terminal_lines=_share(sum(map(_ends_a_sentence, lines)), len(lines)),
        short_lines=_share(sum(len(line) <= SHORT_LINE for line in lines), len(lines)),
        longest_run_of_equal_lines=max(
            (sum(1 for _ in run) for _, run in itertools.groupby(_list_indented_lines(text))),
            default=0,
        ),
        duplicate_lines=duplicate_lines,
        duplicate_line_characters=duplicate_line_characters,
        duplicate_paragraphs=duplicate_paragraphs,
        duplicate_paragraph_characters=duplicate_paragraph_characters,
        **_repetition(words, lengths),
    )


def _list_indented_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines without the white space around them, with the width of their indentation."""
    lines = [line for line in text.split("\n") if line.strip()]
    return [(len(line) - len(line.lstrip()), line.strip()) for line in lines]


def _share(part: float, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _symbols(text: str) -> int:
    r"""Count characters of Unicode's classes P and S.

    Python's \w leaves out marks, which are in neither class.
    """
    found = Counter(_NEITHER_WORD_NOR_SPACE.findall(text))
    found["_"] = text.count("_")  # \w, and yet punctuation
    return sum(n for sign, n in found.items() if unicodedata.category(sign)[0] in "PS")


def _has_letter(word: str) -> bool:
    return word.isalpha() or any(map(str.isalpha, word))


def _ends_a_sentence(line: str) -> bool:
    return line.endswith(_TERMINAL) and not line.endswith("...")


def _duplicates(pieces: Sequence[str]) -> tuple[float, float]:
    """Return the share of `pieces` equal to an earlier one, and the share of their characters."""
    again = len(pieces) - len(set(pieces))
    if not again:
        return 0.0, 0.0
    characters = sum(map(len, pieces))
    first = sum(map(len, set(pieces)))
    return _share(again, len(pieces)), _share(characters - first, characters)


def _repetition(words: Sequence[str], lengths: NDArray[np.int64]) -> dict[str, float]:
    numbers: dict[str, int] = {}
    for word in words:
        numbers.setdefault(word, len(numbers))
    ids = np.fromiter(map(numbers.__getitem__, words), np.uint64, len(words))
    found = {f"top_{n}_gram": _top_n_gram(ids, lengths, n) for n in (2, 3, 4)}
    any_left = True
    for n in range(5, 11):
        # A text without repeated runs of five words has none of six.
        share = _duplicate_n_grams(ids, lengths, n) if any_left else 0.0
        any_left = share > 0
        found[f"duplicate_{n}_grams"] = share
    return found


def _n_grams(ids: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the n-gram that starts at each word.

    Overflow wraps around on purpose.
    """
    grams = np.zeros(max(0, len(ids) - n + 1), np.uint64)
    for k in range(n):
        grams = (grams ^ ids[k : k + len(grams)]) * _MULTIPLIER
        grams ^= grams >> np.uint64(29)
    return grams


def _top_n_gram(ids: NDArray[np.uint64], lengths: NDArray[np.int64], n: int) -> float:
    if len(ids) <= n:
        return 0.0
    _, first, counts = np.unique(_n_grams(ids, n), return_index=True, return_counts=True)
    most = int(counts.max())
    if most == 1:
        return 0.0
    ends = np.concatenate([[0], np.cumsum(lengths)])
    tops = first[counts == most]
    longest = int((ends[tops + n] - ends[tops]).max())
    return min(1.0, _share(most * longest, int(ends[-1])))  # "a a a" has "a a" twice: 4 of 3


def _duplicate_n_grams(ids: NDArray[np.uint64], lengths: NDArray[np.int64], n: int) -> float:
    grams = _n_grams(ids, n)
    _, first = np.unique(grams, return_index=True)
    if len(first) == len(grams):
        return 0.0
    repeats = np.ones(len(grams), bool)
    repeats[first] = False
    edges = np.zeros(len(ids) + 1, np.int64)
    edges[: len(grams)] += repeats
    edges[n : n + len(grams)] -= repeats
    inside = np.cumsum(edges[:-1]) > 0
    return _share(int(lengths[inside].sum()), int(lengths.sum()))
