"""Byte views of a text that make it cheap to see that it contains nothing to mask.

Most texts contain nothing to mask. To find this out with the finders' patterns takes up to 80 ns
per character; searching for a few bytes takes one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# Digits become "0", ASCII letters "a".
_SHAPES = bytes(
    ord("0") if chr(code) in "0123456789" else ord("a") if chr(code).isalpha() else code
    for code in range(128)
) + bytes(range(128, 256))


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


# Start and end (exclusive) of a find in the text.
FindPosition = tuple[int, int]
