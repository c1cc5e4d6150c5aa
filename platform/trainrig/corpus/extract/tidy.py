"""Cleans extracted text for every later stage."""

import re

# Surrogates, noncharacter FFFE's twin the BOM, soft hyphen and zero-width space (both cut words in
# two), and all controls but tab and newline. Joiners (200C, 200D) stay: Persian needs them.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ufffe\ud800-\udfff]+")
_LINE_END = re.compile("\r\n?|[\u2028\u2029\x85\x0b\x0c]")
_WIDE_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SPACE_BEFORE_END = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)  # one try a run: linear
_BLANK_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """`text` with one kind of line end and of space, nothing invisible, no two blank lines.

    Indentation stays: code means something by it.
    """
    text = text.replace("\xa0", " ")
    # Most texts have none of what the first three look for, and looking at each character is dear.
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = _LINE_END.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACE.sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _SPACE_BEFORE_END.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()
