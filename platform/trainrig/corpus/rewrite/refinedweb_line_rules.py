"""The line rules of RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.2).

The paper gives one example of each kind of phrase ("3 likes"; "sign-in", "Read more...", "items in
cart") and no code, so implementations differ. DCLM's does not treat a space as part of a number, so
its rule about numeric lines finds no more than the one about single words; its pattern of "Read
more..." matches any characters for the dots; and it applies rules to a line before phrases are
removed, not after.

Line rules reject few lines. Finding these with Python's string methods takes some 1.5 µs a line;
counting the characters of all lines in one compiled pass takes a twentieth of that.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import Int64s, UInt8s, UInt32s
from trainrig.corpus.compiled import compile_nogil

_PLANES = 0x20000  # code points above this are no upper case, digits or white space
_VISIBLE = 1
_CAPITAL = 2
_DIGIT = 4
_NEW_LINE = 0x0A


class LineShapes(NamedTuple):
    r"""Counts for each line of a text, as split by `text.split("\n")`."""

    visible: Int64s  # characters that are not white space
    capitals: Int64s  # characters with str.isupper
    digits: Int64s  # characters with str.isdigit
    words: Int64s  # runs of visible characters
    lengths: Int64s  # characters, from the first visible one to the last

    @classmethod
    def of(cls, text: str) -> "LineShapes":
        """Count the characters of the lines of `text`."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        return cls(*_count_line_characters(codes, _build_character_classes(), text.count("\n") + 1))


@compile_nogil
def _count_line_characters(codes: UInt32s, classes: UInt8s, lines: int) -> Int64s:
    """Count visible characters, capitals, digits, words and length of each line: [5, lines]."""
    counts = np.empty((5, lines), np.int64)
    place = 0
    for line in range(lines):
        visible = 0
        capitals = 0
        digits = 0
        words = 0
        first = 0
        end = 0
        in_word = False
        while place < len(codes) and codes[place] != _NEW_LINE:
            kind = classes[min(codes[place], _PLANES)]
            is_visible = kind != 0
            words += is_visible and not in_word
            in_word = is_visible
            place += 1
            if is_visible:
                first = place - 1 if visible == 0 else first
                end = place
                visible += 1
                capitals += (kind & _CAPITAL) != 0
                digits += (kind & _DIGIT) != 0
        place += 1
        counts[0, line] = visible
        counts[1, line] = capitals
        counts[2, line] = digits
        counts[3, line] = words
        counts[4, line] = end - first
    return counts


@functools.cache
def _build_character_classes() -> UInt8s:
    classes = np.zeros(_PLANES + 1, np.uint8)
    for code in range(_PLANES):
        sign = chr(code)
        if not sign.isspace():
            classes[code] = _VISIBLE + _CAPITAL * sign.isupper() + _DIGIT * sign.isdigit()
    classes[_PLANES] = _VISIBLE
    return classes


_COUNTER_WORDS = 4  # at most: a number, the counted thing, and signs around them
_COUNTER = re.compile(
    r"\W*[0-9][0-9.,]*\s?[kmb]?\s+"
    r"(?:likes?|shares?|comments?|repl(?:y|ies)|views?|followers?|retweets?|reposts?|quotes?"
    r"|bookmarks?|(?:up|down)?votes?|downloads?)\W*",
    re.IGNORECASE,
)
# In the order in which they are applied.
_RULES = (
    "refinedweb_upper_case",
    "refinedweb_numeric",
    "refinedweb_counters",
    "refinedweb_few_words",
)

_UPPER_CASE, _NUMERIC, _COUNTERS, _FEW_WORDS = range(1, 5)

_Phrase = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # a phrase within one line


class RefinedWebLines(Settings):
    """Drops lines without prose, and removes calls to action from short lines.

    Phrases are removed first; then a line is dropped by the first rule that it breaks, in the order
    of the fields. Blank lines stay.
    """

    kind: Literal["RefinedWebLines"] = "RefinedWebLines"
    # Largest share of upper-case characters in a line to keep.
    max_upper_case: float = Field(default=0.5, ge=0, le=1)
    numeric: bool = True  # drop lines of digits and white space alone
    counters: bool = True  # drop lines such as "3 likes" and "1.2k views"
    min_words: int = Field(default=2, ge=0)  # fewest words of a line to keep
    # longest line, in words, from which phrases are removed
    short_line: int = Field(default=10, ge=0)
    # Phrases to remove from the beginnings of short lines; the case of ASCII letters is ignored.
    prefixes: tuple[_Phrase, ...] = ("sign-in",)
    # phrases to remove from the ends of short lines
    suffixes: tuple[_Phrase, ...] = ("read more...",)
    # Phrases to remove anywhere in short lines.
    anywhere: tuple[_Phrase, ...] = ("items in cart",)

    columns: ClassVar[tuple[str, ...]] = (
        *_RULES,  # lines dropped by each rule
        # lines from which phrases were removed, whether dropped afterwards or not
        "refinedweb_cuts",
        "refinedweb_words",  # words of the original text
        "refinedweb_removed_words",
        # removed words, rounded down; above 500 the paper drops the page
        "refinedweb_removed_per_10000",
    )

    def apply(self, text: str, language: str) -> tuple[str, dict[str, int]]:
        """Return `text` without dropped lines and phrases, and the counts. Idempotent."""
        counts = dict.fromkeys(self.columns, 0)
        shapes = LineShapes.of(text)
        before = int(shapes.words.sum())
        if (phrases := self._find_phrase_pattern(text)) is not None:
            text, counts["refinedweb_cuts"] = self._remove_phrases(text, phrases)
            shapes = LineShapes.of(text)
        lines = text.split("\n")
        broken = self._find_broken_rules(lines, shapes)
        fallen = np.bincount(broken, minlength=1 + len(_RULES)).tolist()
        counts.update(zip(_RULES, fallen[1:], strict=True))
        left = shapes.words
        if fallen[0] < len(lines):
            stays = broken == 0
            text = "\n".join(itertools.compress(lines, stays.tolist())).strip("\n")
            left = left[stays]
        removed = before - int(left.sum())
        counts["refinedweb_words"] = before
        counts["refinedweb_removed_words"] = removed
        counts["refinedweb_removed_per_10000"] = removed * 10_000 // max(before, 1)
        return text, counts

    def _find_broken_rules(self, lines: Sequence[str], shapes: LineShapes) -> NDArray[np.int8]:
        """Return for each line the first rule that it breaks, as 1 + its index in _RULES, or 0."""
        broken = np.empty(len(lines), np.int8)
        suspects = _apply_line_rules(
            shapes, self.max_upper_case, self.numeric, self.min_words, broken
        )
        if self.counters:
            for at in suspects.tolist():
                if _COUNTER.fullmatch(lines[at].strip()):
                    broken[at] = _COUNTERS
        return broken

    def _find_phrase_pattern(self, text: str) -> re.Pattern[str] | None:
        """Return the pattern of the phrases, or None if `text` contains none (a fast test)."""
        phrases = (*self.prefixes, *self.suffixes, *self.anywhere)
        folded = _fold_case(text)
        if any(_fold_case(phrase) in folded for phrase in phrases):
            return _compile_phrase_pattern(self.prefixes, self.suffixes, self.anywhere)
        return None

    def _remove_phrases(self, text: str, phrases: re.Pattern[str]) -> tuple[str, int]:
        """Remove `phrases` from short lines; return the text and the number of changed lines."""
        kept = []
        cuts = 0
        for line in text.split("\n"):
            if len(line.split()) <= self.short_line and phrases.search(line.strip()):
                line = _cut_phrases(phrases, line.strip())
                cuts += 1
                if not line:
                    continue
            kept.append(line)
        return "\n".join(kept), cuts


@compile_nogil
def _apply_line_rules(
    shapes: LineShapes,
    max_upper_case: float,
    numeric: bool,
    min_words: int,
    broken: NDArray[np.int8],
) -> Int64s:
    """Fill `broken` except for the rule about counters; return the lines to check for that rule."""
    visible, capitals, digits, words, lengths = shapes
    suspects = np.empty(len(broken), np.int64)
    count = 0
    for line in range(len(broken)):
        broken[line] = 0
        if words[line] == 0:
            continue
        if capitals[line] > max_upper_case * lengths[line]:
            broken[line] = _UPPER_CASE
        elif numeric and digits[line] == visible[line]:
            broken[line] = _NUMERIC
        else:
            if words[line] < min_words:
                broken[line] = _FEW_WORDS
            if digits[line] > 0 and 1 < words[line] <= _COUNTER_WORDS:
                suspects[count] = line
                count += 1
    return suspects[:count]


def _fold_case(text: str) -> bytes:
    """Encode `text` so that spellings that differ in the case of ASCII letters are equal."""
    return text.encode("utf-8", "surrogatepass").lower()


def _cut_phrases(phrases: re.Pattern[str], line: str) -> str:
    times = 1
    while times:  # removing one phrase can join the parts of another
        line, times = phrases.subn("", line)
        line = line.strip()
    return line


@functools.cache
def _compile_phrase_pattern(
    prefixes: tuple[str, ...], suffixes: tuple[str, ...], anywhere: tuple[str, ...]
) -> re.Pattern[str]:
    def whole(phrases: tuple[str, ...]) -> str:
        # (?!) matches nothing.
        return rf"(?<!\w)(?:{'|'.join(map(re.escape, phrases)) or '(?!)'})(?!\w)"

    return re.compile(
        rf"\A{whole(prefixes)}|{whole(suffixes)}\Z|{whole(anywhere)}", re.IGNORECASE | re.ASCII
    )
