"""The line rules of C4 (Raffel et al. 2020, JMLR 21:140, section 2.2), in two implementations.

They differ in details. The authors' code (TensorFlow Datasets, `c4_utils.py`) requires 5 words of a
line and 3 sentences of a page; datatrove, which FineWeb was made with, swaps the two numbers.
datatrove also accepts ' as the end of a sentence, and counts words before citations are removed,
not after.

Both check the end of a line before they strip the space that a removed citation leaves. So "As was
shown. [1]" is dropped for lack of an end mark, as it is here.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import Int64s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.c4_signals import (
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY,
    count_words,
    find_line,
    find_phrases,
    may_have_phrases,
    remove_citations,
)
from trainrig.corpus.signals.line_signals import ends_in_dots
from trainrig.corpus.signals.text_arrays import (
    LINE_BREAK,
    SPACE,
    TextBatch,
    build_batch,
    build_character_tables,
)

# . ? ! " '
_END_MARKS = (0x2E, 0x3F, 0x21, 0x22)
_APOSTROPHE = 0x27
_NEW_LINE = 0x0A


@dataclass(frozen=True)
class _Reading:
    """The details in which the implementations differ."""

    min_words: int
    apostrophe_ends: bool
    words_before_citations_are_cut: bool


_READINGS = {
    "tfds": _Reading(5, False, words_before_citations_are_cut=False),
    "datatrove": _Reading(3, True, words_before_citations_are_cut=True),
}


class C4Lines(Settings):
    """Keeps the lines that C4 keeps, without citations, and counts the lines dropped by each rule.

    A line is dropped by the first rule that it breaks, in the order of the fields. Lines for which
    C4 drops whole pages are counted (`c4_lorem_ipsum`, `c4_curly_brackets`) and left to a filter.
    """

    kind: Literal["C4Lines"] = "C4Lines"
    # Implementation to follow: TensorFlow Datasets (tfds) or datatrove.
    reading: Literal["tfds", "datatrove"] = "tfds"
    # Longest word of a line to keep, in characters.
    max_word_length: int = Field(default=1000, gt=0)
    citations: bool = True  # remove [1], [], [edit] and [citation needed]
    # drop lines without an end mark, or that end in "..."
    terminal_punctuation: bool = True
    # Fewest words of a line to keep; None: the number of the implementation in `reading`.
    min_words: int | None = Field(default=None, ge=0)
    javascript: bool = True  # drop lines that mention JavaScript
    policy: bool = True  # drop lines about cookies, privacy or terms of use

    columns: ClassVar[tuple[str, ...]] = (
        "c4_long_words",  # this and the next columns count lines
        "c4_unended",
        "c4_few_words",
        "c4_javascript",
        "c4_policy",
        "c4_lorem_ipsum",
        "c4_curly_brackets",
        "c4_citations",  # citations removed, in lines without overlong words
    )

    def apply(self, text: str, language: str) -> tuple[str, dict[str, int]]:
        """Return `text` without the dropped lines and citations, and the counts.

        Not idempotent: "[[1]2]" contains another citation after the first run.
        """
        left, counts = self.apply_to_batch(build_batch([text]))
        kept = left.codes_C.tobytes().decode("utf-32-le", "surrogatepass")
        return kept, dict(zip(self.columns, counts[:, 0].tolist(), strict=True))

    def apply_to_batch(self, batch: TextBatch) -> tuple[TextBatch, Int64s]:
        """Apply the rules to many texts; return the kept texts, and the counts [columns, texts]."""
        reading = _READINGS[self.reading]
        rules = _Rules(
            self.max_word_length,
            self.citations,
            self.terminal_punctuation,
            reading.apostrophe_ends,
            reading.min_words if self.min_words is None else self.min_words,
            reading.words_before_citations_are_cut,
            (JAVASCRIPT if self.javascript else 0) | (POLICY if self.policy else 0),
        )
        kept = TextBatch(*map(np.empty_like, batch))
        counts = np.zeros((len(self.columns), len(batch.starts_D1) - 1), np.int64)
        _apply_rules(batch, build_character_tables().lower, rules, kept, counts)
        end = kept.starts_D1[-1]
        return TextBatch(kept.codes_C[:end], kept.classes_C[:end], kept.starts_D1), counts


class _Rules(NamedTuple):
    max_word_length: int
    citations: bool
    ended: bool
    apostrophe_ends: bool
    min_words: int
    words_before_citations_are_cut: bool
    topics: int  # flags of signals/c4_signals.py; a line with one of them is dropped


# Rows of the counts.
_LONG, _UNENDED, _FEW, _JAVASCRIPT, _POLICY, _LOREM, _CURLY, _CITED = range(8)


@compile_nogil
def _apply_rules(
    batch: TextBatch, lower: UInt32s, rules: _Rules, kept: TextBatch, counts: Int64s
) -> None:
    codes, classes, texts = batch
    kept_codes, kept_classes, kept_texts = kept
    to = 0
    kept_texts[0] = 0
    for text in range(len(texts) - 1):
        place = texts[text]
        first = to
        speaks = may_have_phrases(codes, place, texts[text + 1])
        while place < texts[text + 1]:
            line = find_line(codes, classes, place, texts[text + 1])
            place = line.after
            if line.longest > rules.max_word_length:
                counts[_LONG, text] += 1
                continue
            some = codes
            kinds = classes
            start = line.start
            end = line.end
            words = line.words
            if rules.citations and line.may_cite:
                some, kinds, cited = remove_citations(codes, classes, start, end)
                counts[_CITED, text] += cited
                start = 0
                end = len(some)
                if not rules.words_before_citations_are_cut:
                    words = count_words(kinds)
            if rules.ended and not _is_ended(some, start, end, rules.apostrophe_ends):
                counts[_UNENDED, text] += 1
                continue
            if words < rules.min_words:
                counts[_FEW, text] += 1
                continue
            # Removing a citation can join the parts of a phrase.
            looks = speaks or (rules.citations and line.may_cite)
            phrases = find_phrases(some, lower, start, end) if looks else 0
            counts[_LOREM, text] += phrases & LOREM_IPSUM != 0
            if phrases & rules.topics & JAVASCRIPT:
                counts[_JAVASCRIPT, text] += 1
                continue
            counts[_CURLY, text] += line.has_curly_bracket
            if phrases & rules.topics & POLICY:
                counts[_POLICY, text] += 1
                continue
            if to > first:
                kept_codes[to] = _NEW_LINE
                kept_classes[to] = SPACE | LINE_BREAK
                to += 1
            for at in range(start, end):
                # A removed citation can leave white space before the first word of the text.
                if to > first or kinds[at] & SPACE == 0:
                    kept_codes[to] = some[at]
                    kept_classes[to] = kinds[at]
                    to += 1
        while to > first and kept_classes[to - 1] & SPACE:
            to -= 1
        kept_texts[text + 1] = to


@compile_nogil
def _is_ended(codes: UInt32s, start: int, end: int, by_apostrophe: bool) -> bool:
    if start == end or ends_in_dots(codes, start, end):
        return False
    return codes[end - 1] in _END_MARKS or (by_apostrophe and codes[end - 1] == _APOSTROPHE)
