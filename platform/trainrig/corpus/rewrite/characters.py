"""Rewrites of characters: repair of wrongly decoded text, and normal spaces, line ends and quotes.

Wrongly decoded text ("dÃ©jÃ  vu") is repaired by ftfy (Speer 2019, doi:10.5281/zenodo.2591652),
which recognises such text, but takes a millisecond for five kilobytes of correct text. So it gets
only lines that contain a character that all wrongly decoded text has; these are found in a
hundredth of the time.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import UInt8s

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
_PLAIN_ASCII = bytes(range(0x20, 0x7F)) + b"\t\n"


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

        rare = _find_rare_characters(text)
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


def _find_rare_characters(text: str) -> str:
    """Return the characters of `text` that are not plain ASCII, which most steps search."""
    rest = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN_ASCII)
    return rest.decode("utf-8", "surrogatepass")


_BASIC = 0x10000  # code points of the basic plane; none beyond it is an indication
_BESIDE = 1
_ALONE = 2
_ASCII = 4


class RepairUnicode(Settings):
    """Repairs wrongly decoded text, joins surrogates and composes characters (NFC)."""

    kind: Literal["RepairUnicode"] = "RepairUnicode"

    columns: ClassVar[tuple[str, ...]] = (
        "unicode_repaired_lines",
        "unicode_composed_lines",  # changed by NFC alone
    )

    def apply(self, text: str, language: str) -> tuple[str, dict[str, int]]:
        """Repair `text` line by line; return it with the counts. Idempotent."""
        repaired = 0
        composed = 0
        if suspects := find_suspect_lines(text):
            lines = text.split("\n")
            for at in suspects:
                fixed = load_fixer()(lines[at])
                if fixed != lines[at]:
                    by_nfc = fixed == unicodedata.normalize("NFC", lines[at])
                    composed = composed + by_nfc
                    repaired = repaired + (not by_nfc)
                    lines[at] = fixed
            if repaired or composed:
                text = "\n".join(lines)
        return text, {"unicode_repaired_lines": repaired, "unicode_composed_lines": composed}


def find_suspect_lines(text: str) -> list[int]:
    """Return the numbers (from 0) of all lines that ftfy might repair, and of few others."""
    if text.isascii():
        return []
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    classes = _build_mojibake_classes().take(codes, mode="clip")
    suspect = (classes & _ALONE).view(bool)
    beside = (classes & _BESIDE).view(bool)
    foreign = classes < _ASCII
    suspect[1:] |= (beside[1:] & foreign[:-1]) | (beside[:-1] & foreign[1:])
    found = np.flatnonzero(suspect)
    numbers = set()
    if len(found):
        line_ends = np.flatnonzero(codes == ord("\n"))
        numbers.update(np.searchsorted(line_ends, found).tolist())
    if not unicodedata.is_normalized("NFC", text):
        numbers.update(
            at
            for at, line in enumerate(text.split("\n"))
            if not unicodedata.is_normalized("NFC", line)
        )
    return sorted(numbers)


@functools.cache
def load_fixer() -> Callable[[str], str]:
    """Load ftfy with all its repairs, and without its optional normalisations."""
    # Imported here: it takes a tenth of a second, and most processes repair nothing.
    import ftfy

    settings = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization="NFC",
        explain=False,
    )
    return functools.partial(ftfy.fix_text, config=settings)


@functools.cache
def _build_mojibake_classes() -> UInt8s:
    """Classify each code point as an indication alone, or only beside another non-ASCII one."""
    from ftfy.badness import MOJIBAKE_CATEGORIES

    classes = np.zeros(_BASIC + 1, np.uint8)
    classes[:0x80] = _ASCII
    # Letters of other alphabets, and common signs, are an indication only beside others.
    harmless = {"common", "lower_common", "upper_common", "kaomoji"}
    for name, signs in MOJIBAKE_CATEGORIES.items():
        if name not in harmless:
            classes[_list_code_points(signs)] = _BESIDE
    classes[_list_code_points("°ÙØЂ")] = _BESIDE
    classes[_list_code_points("ÂÃŒœ\x80-\x9f\ud800-\udfff")] = _ALONE | _BESIDE
    return classes


def _list_code_points(signs: str) -> list[int]:
    """Return the code points that a regular expression's bracket content `signs` matches."""
    every_sign = "".join(map(chr, range(0x80, _BASIC)))
    return [ord(sign) for sign in re.findall(f"[{signs}]", every_sign)]
