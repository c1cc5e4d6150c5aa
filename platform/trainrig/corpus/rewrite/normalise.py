"""Normalises line ends, spaces and quotation marks, and removes invisible characters."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Controls but tab and line end; soft hyphen, zero-width space, word joiner and byte-order mark.
# The last four split words. Joiners (200C, 200D) stay, as Persian and emoji need them.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b\u2060\ufeff\ufffe]")
_WIDE_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INNER_SPACES = re.compile(r"(?<=\S)[ \t]{2,}(?=\S)|(?<=\S)\t(?=\S)")
_SPACE_AT_END = re.compile(r"(?<![ \t])[ \t]++(?=\n|\Z)")  # the lookbehind starts one match per run
_QUOTES = (
    (re.compile("[\u2018\u2019\u201a\u201b\u2032]"), "'"),
    (re.compile("[\u201c\u201d\u201e\u201f\u2033\xab\xbb]"), '"'),
)
_PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n"


class Normalise(Settings):
    """Normalises characters that readers do not distinguish; indentation stays, for code."""

    kind: Literal["Normalise"] = "Normalise"
    line_ends: bool = True  # convert all line ends to "\n"
    invisible: bool = True  # drop control characters and characters of zero width
    wide_spaces: bool = True  # convert all kinds of space to " "
    # leave a single space between words, which misaligns tables
    inner_spaces: bool = False
    spaces_at_end: bool = True  # drop spaces at the ends of lines
    quotes: bool = False  # convert ‘’‚‛′ and “”„‟″«» to straight quotes
    # Most blank lines in a row; None: no limit.
    max_blank_lines: int | None = Field(default=1, ge=0)

    columns: ClassVar[tuple[str, ...]] = (
        "normalised_line_ends",
        "normalised_invisible",
        "normalised_wide_spaces",
        "normalised_inner_spaces",
        "normalised_spaces_at_end",
        "normalised_quotes",
        "normalised_blank_lines",
    )

    def apply(self, text: str, language: str) -> tuple[str, dict[str, int]]:
        """Normalise `text`; return it with the number of places each step changed. Idempotent."""
        counts = dict.fromkeys(self.columns, 0)

        def replace(column: str, pattern: re.Pattern[str], by: str) -> None:
            nonlocal text
            text, places = pattern.subn(by, text)
            counts[column] += places

        rare = _find_rare(text)
        if self.line_ends and _LINE_END.search(rare):
            replace("normalised_line_ends", _LINE_END, "\n")
        if self.invisible and _INVISIBLE.search(rare):
            replace("normalised_invisible", _INVISIBLE, "")
        if self.wide_spaces and _WIDE_SPACE.search(rare):
            replace("normalised_wide_spaces", _WIDE_SPACE, " ")
        if self.quotes:
            for quotes, straight in _QUOTES:
                if quotes.search(rare):
                    replace("normalised_quotes", quotes, straight)
        if self.inner_spaces and ("  " in text or "\t" in text):
            replace("normalised_inner_spaces", _INNER_SPACES, " ")
        # The last line may have no line end, so one is added for the test.
        if self.spaces_at_end and any(ending in f"{text}\n" for ending in (" \n", "\t\n")):
            replace("normalised_spaces_at_end", _SPACE_AT_END, "")
        if self.max_blank_lines is not None:
            kept = "\n" * (self.max_blank_lines + 1)
            if kept + "\n" in text:
                replace("normalised_blank_lines", re.compile(rf"{kept}\n+"), kept)
        return text, counts


def _find_rare(text: str) -> str:
    """Return the characters of `text` that are not plain ASCII, which most steps search."""
    rest = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN)
    return rest.decode("utf-8", "surrogatepass")
