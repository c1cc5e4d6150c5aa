"""Byte views of a text that make it cheap to see that it contains nothing to mask.

Most texts contain nothing to mask. To find this out with the finders' patterns takes up to 80 ns
per character; searching for a few bytes takes one.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["KEY", "EMAIL", "IBAN", "CARD", "SSN", "NATIONAL_ID", "IP", "PHONE"]

# Start and end (exclusive) of a find in the text.
FindPosition = tuple[int, int]

# Digits become "0", ASCII letters "a".
_SHAPES = bytes(
    ord("0") if chr(code) in "0123456789" else ord("a") if chr(code).isalpha() else code
    for code in range(128)
) + bytes(range(128, 256))

# Characters of tokens and of base64 become "x", all others a space.
_TOKENS = bytes(
    ord("x") if code < 128 and (chr(code).isalnum() or chr(code) in "_/+-") else ord(" ")
    for code in range(256)
)
SHORTEST_TOKEN = 16  # characters
# Start of a number of at least seven digits, with up to nine separators between two of them.
_LONG_NUMBER = re.compile(rb"0(?<![a0]0)(?=(?:[ ()./-]{0,9}0){6})")


@dataclass(frozen=True)
class Views:
    """Views of a text with one entry per character, so that positions are the same in all."""

    text: str

    @cached_property
    def raw(self) -> bytes:
        """The text in Latin-1, with "?" for other characters."""
        return self.text.encode("latin-1", "replace")

    @cached_property
    def lower(self) -> bytes:
        """The `raw` view with ASCII letters in lower case."""
        return self.raw.lower()

    @cached_property
    def shape(self) -> bytes:
        """The `raw` view with digits as "0" and ASCII letters as "a"."""
        return self.raw.translate(_SHAPES)

    @cached_property
    def tokens(self) -> list[FindPosition]:
        """Spans of runs of at least SHORTEST_TOKEN letters, digits and signs of base64."""
        signs = self.raw.translate(_TOKENS)
        found = []
        end = 0
        while (start := signs.find(b"x" * SHORTEST_TOKEN, end)) >= 0:
            end = signs.find(b" ", start)
            end = len(signs) if end < 0 else end
            found.append((start, end))
        return found

    @cached_property
    def number_starts(self) -> list[int]:
        """Positions where a number of at least seven digits begins, with separators or without."""
        return [found.start() for found in _LONG_NUMBER.finditer(self.shape)]

    def blot(self, spans: list[FindPosition]) -> "Views":
        """Return the views of the text in which each of `spans` is "<", spaces and ">"."""
        blotted = Views(_blot_text(self.text, spans))
        for name in ("raw", "lower", "shape"):
            if name in self.__dict__:  # changing a few bytes is faster than encoding the text
                changed = bytearray(self.__dict__[name])
                for start, end in spans:
                    changed[start:end] = b"<" + b" " * (end - start - 2) + b">"
                blotted.__dict__[name] = bytes(changed)
        if "tokens" in self.__dict__:
            blotted.__dict__["tokens"] = _cut_runs(self.tokens, spans)
        return blotted

    def find_numbers(
        self, pattern: re.Pattern[str], begin: re.Pattern[bytes]
    ) -> Iterator[re.Match[str]]:
        """Find the matches that `find_matches` would find, for numbers of seven digits or more."""
        end = 0
        for start in self.number_starts:
            if start >= end and begin.match(self.shape, start):
                whole = pattern.match(self.text, start)
                if whole:
                    end = whole.end()
                    yield whole

    def find_matches(
        self, pattern: re.Pattern[str], begin: re.Pattern[bytes]
    ) -> Iterator[re.Match[str]]:
        """Find the non-overlapping matches that `pattern.finditer` would find, only faster.

        `begin` matches, in the shape view, every position where a match can begin. It should match
        a single entry, because no other match can begin inside its own.
        """
        end = 0
        for at in begin.finditer(self.shape):
            start = at.start()
            if start >= end and (whole := pattern.match(self.text, start)):
                end = whole.end()
                yield whole


def _blot_text(text: str, spans: list[FindPosition]) -> str:
    pieces = []
    at = 0
    for start, end in spans:
        pieces += [text[at:start], "<", " " * (end - start - 2), ">"]
        at = end
    return "".join([*pieces, text[at:]])


def _cut_runs(runs: list[FindPosition], spans: list[FindPosition]) -> list[FindPosition]:
    """Return the parts of `runs` outside `spans` that are long enough for a token."""
    left: list[FindPosition] = []
    following = iter([*spans, (sys.maxsize, sys.maxsize)])
    start, end = next(following)
    for first, last in runs:
        while end <= first:
            start, end = next(following)
        while start < last:
            if start - first >= SHORTEST_TOKEN:
                left.append((first, start))
            first = end
            if end >= last:
                break
            start, end = next(following)
        if last - first >= SHORTEST_TOKEN:
            left.append((first, last))
    return left
