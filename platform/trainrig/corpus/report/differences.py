"""Finds the words in which two texts differ."""

import difflib
import re

_WORD = re.compile(r"\S+")
Span = tuple[int, int]


def find_differences(one: str, other: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the spans of words only in `one`, and of words only in `other`, in order."""
    words = [list(_WORD.finditer(text)) for text in (one, other)]
    first_text, second_text = ([word.group() for word in text_words] for text_words in words)
    matcher = difflib.SequenceMatcher(None, first_text, second_text, autojunk=False)
    found: tuple[list[Span], list[Span]] = ([], [])
    for kind, *places in matcher.get_opcodes():
        for spans, matches, (first, end) in zip(
            found, words, (places[:2], places[2:]), strict=True
        ):
            if kind != "equal" and end > first:
                spans.append((matches[first].start(), matches[end - 1].end()))
    return tuple(found[0]), tuple(found[1])
