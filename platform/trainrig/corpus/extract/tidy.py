"""Normalises white space in extracted text and removes invisible characters."""

import re

# Surrogates, the byte-order mark and its noncharacter twin FFFE, soft hyphen and zero-width space
# (which split words), and all controls but tab and newline. Joiners (200C, 200D) stay, as Persian
# needs them.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ufffe\ud800-\udfff]+")
_LINE_END = re.compile("\r\n?|[\u2028\u2029\x85\x0b\x0c]")
_WIDE_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# the lookbehind starts one match per run, so the time is linear
_SPACE_BEFORE_END = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """Return `text` with one kind of line end and space, and at most one blank line in a row.

    Invisible characters are removed. Indentation stays, as code depends on it.
    """
    text = text.replace("\xa0", " ")
    # Most texts need none of these three substitutions, which are slow.
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = _LINE_END.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACE.sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _SPACE_BEFORE_END.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()
