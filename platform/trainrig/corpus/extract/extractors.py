"""The extractors that a run file can choose, with their limits, and the results of an extraction.

A result is a text with metadata, or the reason why there is none. trafilatura is imported at first
use, as that takes 0.5 s and 50 MB.
"""

import logging
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.config.field_marks import ADDED_LATER
from trainrig.corpus.extract.page_kinds import KindOfPage
from trainrig.corpus.extract.page_permissions import PagePermissions

Quality = Literal["fast", "balanced", "precise"]
Favour = Literal["balance", "precision", "recall"]

TRAFILATURA_NODES: Final = 50_000  # tags; 660 real pages reach 19,300


class PlainText(Settings):
    """Takes every page as plain text, whatever its content type."""

    kind: Literal["PlainText"] = "PlainText"
    # Largest body of a page, in bytes; larger pages are not extracted.
    max_bytes: int = Field(default=10 * 2**20, gt=0)


class HTMLExtractor(Settings):
    """Limits on an HTML page, which depend on the page alone, not on the machine.

    The defaults are far above 660 measured pages of news and blogs, which reach 1.6 MB, 60 levels
    and 19,300 tags.
    """

    # Largest body of a page, in bytes; larger pages are not extracted.
    max_bytes: int = Field(default=10 * 2**20, gt=0)
    # Most levels of nested elements; browsers stop at 512. Extraction time grows with their square:
    # 10,000 levels take 1.7 s, 100,000 minutes. The depth is checked only for pages with more than
    # four tags per level.
    max_depth: int = Field(default=512, gt=0)
    # Most tags and comments in a page, counted as "<" signs.
    max_nodes: int = Field(default=500_000, gt=0)
    # Most different names of attributes in a tag; 4,847 real pages have fewer than 300. The parser
    # compares each name with all before it: 5,000 names take 0.05 s, 100,000 over 20 s.
    max_attributes: Annotated[int, ADDED_LATER] = Field(default=2_000, gt=0)
    # Whether to read the licence that a page states, and its refusals of archiving and AI training.
    # The columns of documents then include `license` and those that the filters `License` and
    # `OptOut` bound.
    permissions: Annotated[bool, ADDED_LATER] = False
    # Whether to find the kind of page: article, documentation, forum, listing, product or other.
    # The columns of documents then include `page_kind`, by which filters can be restricted.
    page_kind: Annotated[bool, ADDED_LATER] = False


class Resiliparse(HTMLExtractor):
    """Extracts HTML by resiliparse (Bevendorff et al. 2018 and later); plain text is kept as it is.

    On 181 pages with known text its recall is .980 at a precision of .878 (4-gram shingles;
    trafilatura has .972 and .929), and it is 16 to 25 times as fast as trafilatura.
    """

    kind: Literal["Resiliparse"] = "Resiliparse"
    main_content: bool = True  # drop navigation, headers and footers
    list_bullets: bool = True  # Whether list items keep their bullets
    # Whether to keep the alternative texts of images: captions at best, file names at worst.
    alt_texts: bool = False
    comments: bool = False  # keep sections of reader comments


class MainContent(HTMLExtractor):
    """Extracts the main article of a page, at one of three speeds; see docs/performance.md.

    A walk over the parsed page cuts all of it into blocks. `fast` drops the blocks in elements for
    navigation, headers, footers, asides and forms, or with such class names, and those that are
    mostly links. `balanced` asks decision trees about each block. `precise` lets the trees and
    trafilatura vote on the blocks of pages of which the trees are not certain.
    """

    kind: Literal["MainContent"] = "MainContent"
    quality: Quality = "balanced"  # `fast`, `balanced` or `precise`, from fastest to best
    # `text`, or `markdown` with the signs of headings, fenced code, tables, and TeX in $…$
    format: Literal["text", "markdown"] = "text"
    list_bullets: bool = True  # Whether list items keep their bullets and numbers


class Trafilatura(HTMLExtractor):
    """Extracts HTML by trafilatura (Barbaresi 2021) alone, at 10 times the cost of MainContent."""

    kind: Literal["Trafilatura"] = "Trafilatura"
    # Most tags and comments in a page. The time grows faster than their number: 2.2 s for 49,000,
    # over 60 s for 499,000.
    max_nodes: int = Field(default=TRAFILATURA_NODES, gt=0)
    # "precision", "recall", or a "balance" of both
    favour: Favour = "balance"
    tables: bool = True  # keep tables
    comments: bool = False  # keep sections of reader comments


def reads_permissions(extractor: HTMLExtractor | PlainText) -> bool:
    """Return whether `extractor` also reads what pages allow."""
    return isinstance(extractor, HTMLExtractor) and extractor.permissions


def finds_page_kind(extractor: HTMLExtractor | PlainText) -> bool:
    """Return whether `extractor` also finds the kind of each page."""
    return isinstance(extractor, HTMLExtractor) and extractor.page_kind


@dataclass(frozen=True)
class Extracted:
    """The extracted text and metadata of a page."""

    text: str
    title: str  # "" if the page has none
    language_hint: str  # language that the page declares, such as "en"; "" if none
    date: str = ""  # ISO 8601 day of publication that the page declares; "" if none
    # Share of the characters of the page's main content that the text has; None if the extractor
    # does not measure it.
    share: float | None = None
    permissions: PagePermissions | None = None  # permissions that the page states, if read
    page_kind: KindOfPage | None = None  # kind of the page, if found


@dataclass(frozen=True)
class NotExtracted:
    """Reason why a page gave no text.

    "too_large", "too_deep", "too_many_nodes", "too_many_attributes": beyond a limit of the
    extractor. "not_text": the content type is that of an image, a script or similar. "binary": the
    bytes are not text, although the content type is. "empty": no text is left. "cpu_time",
    "memory", "crashed": the process that extracted the page died (see guard.py).
    """

    reason: str


def extract_with_trafilatura(html: str, settings: Trafilatura) -> str:
    """Extract the text of `html`; return "" if trafilatura finds none."""
    import trafilatura

    # trafilatura logs an error for each page without text; callers count these pages.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found = trafilatura.extract(
        html,
        favor_precision=settings.favour == "precision",
        favor_recall=settings.favour == "recall",
        include_tables=settings.tables,
        include_comments=settings.comments,
    )
    return str(found or "")
