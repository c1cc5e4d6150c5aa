"""Extraction of one page's text by the chosen extractor."""

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_mime
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import trafilatura_text
from trainrig.corpus.extract.decode import decode, is_binary
from trainrig.corpus.extract.kinds import (
    HTMLExtractor,
    MainContent,
    PlainText,
    Resiliparse,
    Trafilatura,
)
from trainrig.corpus.extract.metadata import find_date, find_language, find_title
from trainrig.corpus.extract.outcome import Extracted, NotExtracted
from trainrig.corpus.extract.tidy import tidy
from trainrig.corpus.extract.tree import parse
from trainrig.corpus.read import RawPage

HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("text/plain", "text/markdown")


def extract(page: RawPage, extractor: HTMLExtractor | PlainText) -> Extracted | NotExtracted:
    """Extract the text of `page`; whatever its bytes are, this does not raise."""
    if len(page.body) > extractor.max_bytes:
        return NotExtracted("too_large")
    if isinstance(extractor, PlainText):
        return _extract_plain(page)
    content_type = page.content_type or detect_mime(page.body)
    if content_type in TEXT_TYPES:
        return _extract_plain(page)
    if content_type not in HTML_TYPES:
        return NotExtracted("not_text")
    html = decode(page)
    if is_binary(page, html):
        return NotExtracted("binary")
    tree = parse(html, extractor)
    if isinstance(tree, NotExtracted):
        return tree
    text, share = _extract_text(tree, html, extractor)
    return _build_result(text, find_title(tree), find_language(tree), find_date(tree, html), share)


def _extract_plain(page: RawPage) -> Extracted | NotExtracted:
    text = decode(page)
    return NotExtracted("binary") if is_binary(page, text) else _build_result(text)


def _build_result(
    raw: str, title: str = "", language: str = "", date: str = "", share: float | None = None
) -> Extracted | NotExtracted:
    text = tidy(raw)
    return Extracted(text, title, language, date, share) if text else NotExtracted("empty")


def _extract_text(tree: HTMLTree, html: str, extractor: HTMLExtractor) -> tuple[str, float | None]:
    """Return the text, and its share of the page's main content where that is known."""
    if isinstance(extractor, MainContent):
        # Imported here because it loads numba, which the other extractors do not need.
        from trainrig.corpus.extract.main_content import extract_main_content

        return extract_main_content(tree, html, extractor)
    if isinstance(extractor, Trafilatura):
        return trafilatura_text.extract(html, extractor), None
    assert isinstance(extractor, Resiliparse)
    text = extract_plain_text(
        tree,
        main_content=extractor.main_content,
        list_bullets=extractor.list_bullets,
        alt_texts=extractor.alt_texts,
        comments=extractor.comments,
    )
    return str(text), None
