"""Extraction of one page's text: decoding, rejection of binary bodies, the chosen extractor."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding, detect_mime, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import extractors
from trainrig.corpus.extract.extractors import (
    Extracted,
    HTMLExtractor,
    MainContent,
    NotExtracted,
    PlainText,
    Resiliparse,
    Trafilatura,
)
from trainrig.corpus.extract.html_page import (
    expand_self_closed,
    find_article_in_json,
    find_date,
    find_language,
    find_title,
    parse_html,
    tidy,
)
from trainrig.corpus.extract.page_kinds import PLAIN_TEXT
from trainrig.corpus.extract.page_permissions import find_permissions
from trainrig.corpus.read import RawPage
from trainrig.corpus.read.text_files import guess_encoding

if TYPE_CHECKING:  # these load numba
    from trainrig.corpus.extract.page_blocks import PageBlocks
    from trainrig.corpus.extract.page_kind_evidence import JudgedPage

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WHOLE_PER_DAMAGED: Final = (
    10  # times as many whole characters as damaged ones: UTF-8 that was cut or mixed
)
# In Western text, accented letters stand alone among ASCII. Where most bytes beyond ASCII are
# adjacent, the text is Cyrillic, Greek or Chinese under an encoding that many servers declare for
# every page.
_WESTERN: Final = frozenset({"cp1252", "iso8859-15"})
_SIDE_BY_SIDE = re.compile(rb"[\x80-\xff]{3,}")
_BEYOND_ASCII = bytes(range(128, 256))
_LEAST_BEYOND_ASCII: Final = 16  # fewer bytes beyond ASCII are not enough evidence

# First bytes of other file types; no text begins with them.
_BINARY_MAGIC = (
    b"\x89PNG\r\n",
    b"\xff\xd8\xff",
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
    b"\x7fELF",
    b"\xd0\xcf\x11\xe0",
)
# Characters; a page with less text is searched for an article in its JSON-LD.
_LITTLE_TEXT: Final = 250
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_LOOKED_AT: Final = 4096  # characters at the start that are examined
# largest share of control characters in a text; random bytes have a tenth
_MOST_CONTROLS: Final = 0.02
_A_FEW_CONTROLS: Final = 4


def decode(page: RawPage) -> str:
    """Decode the body: by byte-order mark, else as UTF-8, else as declared, else by a guess.

    Valid UTF-8 is decoded as UTF-8 whatever the page declares, as other text is never valid UTF-8
    by chance. A declared encoding that damages more characters than it decodes is replaced by the
    next candidate. Undecodable bytes become U+FFFD.
    """
    for mark, encoding in _BOMS:
        if page.body.startswith(mark):
            return page.body[len(mark) :].decode(encoding, "replace")
    if b"\x1b" not in page.body:  # ISO-2022 encodings are ASCII with escapes
        try:
            # Not final: a page truncated at a number of bytes may end inside a character.
            return codecs.utf_8_decode(page.body, "strict", False)[0]
        except UnicodeDecodeError:
            pass
    text = page.body.decode("utf-8", "replace")
    whole, damaged = _count_characters(text)
    if whole > _WHOLE_PER_DAMAGED * damaged:
        return text
    first = None
    for encoding in _iterate_encodings(page):
        text = page.body.decode(encoding, "replace")
        if _fits_encoding(page.body, encoding, text):
            return text
        first = text if first is None else first
    assert first is not None
    return first


def is_binary(page: RawPage, text: str) -> bool:
    """Return whether the body is not text, whatever its type; `text` is the decoded body."""
    if page.body.startswith(_BINARY_MAGIC):
        return True
    head = text[:_LOOKED_AT]
    if head.isprintable():
        return False
    return len(_CONTROL.findall(head)) > max(_A_FEW_CONTROLS, _MOST_CONTROLS * len(head))


def _iterate_encodings(page: RawPage) -> Iterator[str]:
    """Yield encodings: from the header, from the page's head, guessed from bytes, and cp1252."""
    claimed = map_encoding_to_html5(page.charset, fallback_utf8=False) if page.charset else None
    if claimed:
        yield claimed
    yield detect_encoding(page.body, from_html_meta=True) or "cp1252"
    yield guess_encoding(page.body)
    yield "cp1252"


def _fits_encoding(body: bytes, encoding: str, text: str) -> bool:
    whole, damaged = _count_characters(text)
    if damaged > whole:
        return False
    if encoding not in _WESTERN:
        return True
    beyond = len(body) - len(body.translate(None, _BEYOND_ASCII))
    side_by_side = sum(map(len, _SIDE_BY_SIDE.findall(body)))
    return beyond < _LEAST_BEYOND_ASCII or 2 * side_by_side < beyond


def _count_characters(text: str) -> tuple[int, int]:
    """Count the characters beyond ASCII that are whole, and those that are damaged."""
    damaged = text.count("\ufffd")
    return len(text) - len(text.encode("ascii", "ignore")) - damaged, damaged


XHTML_TYPE = "application/xhtml+xml"
HTML_TYPES = ("text/html", XHTML_TYPE)
TEXT_TYPES = ("text/plain", "text/markdown")


def extract(page: RawPage, extractor: HTMLExtractor | PlainText) -> Extracted | NotExtracted:
    """Extract the text of `page`; whatever its bytes are, this does not raise."""
    if len(page.body) > extractor.max_bytes:
        return NotExtracted("too_large")
    if isinstance(extractor, PlainText):
        return _extract_plain(page)
    content_type = page.content_type or detect_mime(page.body)
    if content_type in TEXT_TYPES:
        plain = _extract_plain(page)
        if isinstance(plain, NotExtracted):
            return plain
        return replace(
            plain,
            permissions=find_permissions(None, "", page.headers) if extractor.permissions else None,
            page_kind=PLAIN_TEXT if extractor.page_kind else None,
        )
    if content_type not in HTML_TYPES:
        return NotExtracted("not_text")
    html = decode(page)
    if is_binary(page, html):
        return NotExtracted("binary")
    if content_type == XHTML_TYPE:
        html = expand_self_closed(html)
    tree = parse_html(html, extractor)
    if isinstance(tree, NotExtracted):
        return tree
    # before the text, because its extraction changes the tree
    permissions = find_permissions(tree, html, page.headers) if extractor.permissions else None
    judged = _find_page_kind(tree, html, extractor) if extractor.page_kind else None
    text, share = _extract_text(tree, html, extractor, judged and judged.blocks)
    result = _build_result(
        text, find_title(tree), find_language(tree), find_date(tree, html), share
    )
    if isinstance(result, NotExtracted):
        return result
    return replace(result, permissions=permissions, page_kind=judged and judged.page_kind)


def _find_page_kind(tree: HTMLTree, html: str, extractor: HTMLExtractor) -> "JudgedPage":
    # Imported here because it loads numba, which other extractors than MainContent do not need.
    from trainrig.corpus.extract.page_kind_evidence import find_page_kind

    is_dated = bool(find_date(tree, html))
    # Finding the kind may change the tree, and the text must not depend on that. MainContent uses
    # the same blocks.
    if not isinstance(extractor, MainContent):
        tree = HTMLTree.parse(html)
    return find_page_kind(tree, html, is_dated)


def _extract_plain(page: RawPage) -> Extracted | NotExtracted:
    text = decode(page)
    return NotExtracted("binary") if is_binary(page, text) else _build_result(text)


def _build_result(
    raw: str, title: str = "", language: str = "", date: str = "", share: float | None = None
) -> Extracted | NotExtracted:
    text = tidy(raw)
    if not text:
        return NotExtracted("empty")
    return Extracted(text, title, language, date, share)


def _extract_text(
    tree: HTMLTree, html: str, extractor: HTMLExtractor, blocks: "PageBlocks | None"
) -> tuple[str, float | None]:
    """Return the text, and its share of the page's main content where that is known.

    `blocks` are those of the page, if it has been cut already.
    """
    if isinstance(extractor, MainContent):
        # Imported here because it loads numba, which the other extractors do not need.
        from trainrig.corpus.extract.main_content import extract_main_content

        content = extract_main_content(tree, html, extractor, blocks)
        if len(content.text) < _LITTLE_TEXT:
            in_json = find_article_in_json(html)
            if len(in_json) > 2 * len(content.text):
                return in_json, None
        return content
    if isinstance(extractor, Trafilatura):
        return extractors.extract_with_trafilatura(html, extractor), None
    assert isinstance(extractor, Resiliparse)
    text = extract_plain_text(
        tree,
        main_content=extractor.main_content,
        list_bullets=extractor.list_bullets,
        alt_texts=extractor.alt_texts,
        comments=extractor.comments,
    )
    return str(text), None
