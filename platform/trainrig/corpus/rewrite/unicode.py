"""Repairs text that was decoded wrongly ("dÃ©jÃ  vu"), by ftfy.

ftfy (Speer 2019, doi:10.5281/zenodo.2591652) recognises such text, but takes a millisecond for five
kilobytes of correct text. So it gets only lines that contain a character that all wrongly decoded
text has; these are found in a hundredth of the time.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Settings

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
    classes = _build_classes().take(codes, mode="clip")
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
def _build_classes() -> NDArray[np.uint8]:
    """Classify each code point as an indication alone, or only beside another non-ASCII one."""
    from ftfy.badness import MOJIBAKE_CATEGORIES

    classes = np.zeros(_BASIC + 1, np.uint8)
    classes[:0x80] = _ASCII
    # Letters of other alphabets, and common signs, are an indication only beside others.
    harmless = {"common", "lower_common", "upper_common", "kaomoji"}
    for name, signs in MOJIBAKE_CATEGORIES.items():
        if name not in harmless:
            classes[_list_codes(signs)] = _BESIDE
    classes[_list_codes("°ÙØЂ")] = _BESIDE
    classes[_list_codes("ÂÃŒœ\x80-\x9f\ud800-\udfff")] = _ALONE | _BESIDE
    return classes


def _list_codes(signs: str) -> list[int]:
    """Return the code points that a regular expression's bracket content `signs` matches."""
    every_sign = "".join(map(chr, range(0x80, _BASIC)))
    return [ord(sign) for sign in re.findall(f"[{signs}]", every_sign)]
