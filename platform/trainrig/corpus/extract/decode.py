"""From the bytes of a page to its characters."""

import codecs

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from trainrig.corpus.read import Page

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(page: Page) -> str:
    """The body as text: by byte-order mark, as UTF-8 if it is that, by what it claims, by guess.

    Bytes that are valid UTF-8 are UTF-8 whatever they claim: no other text looks so by chance.
    What cannot be decoded becomes U+FFFD.
    """
    for mark, encoding in _BOMS:
        if page.body.startswith(mark):
            return page.body[len(mark) :].decode(encoding, "replace")
    if b"\x1b" not in page.body:  # an ISO-2022 encoding, which is ASCII with escapes
        try:
            # Not final: a page cut at a number of bytes may end inside a character.
            return codecs.utf_8_decode(page.body, "strict", False)[0]
        except UnicodeDecodeError:
            pass
    claimed = map_encoding_to_html5(page.charset, fallback_utf8=False) if page.charset else None
    encoding = claimed or detect_encoding(page.body, from_html_meta=True) or "cp1252"
    return page.body.decode(encoding, "replace")
