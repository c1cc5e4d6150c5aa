"""A text, and what shows at a glance that there is nothing to find in it.

Most texts hold nothing that a finder looks for. To find that out by its pattern costs up to 80 ns
a character; by a search for a few bytes, one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# Digits as "0", letters of either case as "a".
_SHAPES = bytes(
    ord("0") if chr(code) in "0123456789" else ord("a") if chr(code).isalpha() else code
    for code in range(128)
) + bytes(range(128, 256))


@dataclass(frozen=True)
class Views:
    """Views of a text, one entry a character in each, so that places are the same in all."""

    text: str

    @cached_property
    def raw(self) -> bytes:
        """In Latin-1, with "?" for what it has not."""
        return self.text.encode("latin-1", "replace")

    @cached_property
    def lower(self) -> bytes:
        """In lower case, as far as it is ASCII."""
        return self.raw.lower()

    @cached_property
    def shape(self) -> bytes:
        """Digits as "0", letters of ASCII as "a"."""
        return self.raw.translate(_SHAPES)

    def find_matches(
        self, pattern: re.Pattern[str], begin: re.Pattern[bytes]
    ) -> Iterator[re.Match[str]]:
        """What `pattern.finditer` yields; `begin` matches the shape wherever a find can begin.

        `begin` should match a single entry: what it takes, no other can begin in.
        """
        end = 0
        for at in begin.finditer(self.shape):
            start = at.start()
            if start >= end and (whole := pattern.match(self.text, start)):
                end = whole.end()
                yield whole


# of a find in the text: its first character, and the one after its last
FindPosition = tuple[int, int]
