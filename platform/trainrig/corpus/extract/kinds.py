"""The extractors that a run file may name, and their limits."""

from typing import Annotated, Final, Literal

from pydantic import Field

from trainrig.config import Settings

Quality = Literal["fast", "balanced", "precise"]
Favour = Literal["balance", "precision", "recall"]

TRAFILATURA_NODES: Final = 50_000  # tags; 660 real pages reach 19,300


class PlainText(Settings):
    """Every page is text as it stands, whatever type it claims."""

    kind: Literal["PlainText"] = "PlainText"
    # Largest body of a page, in bytes; larger ones are refused.
    max_bytes: int = Field(default=10 * 2**20, gt=0)


class HTMLExtractor(Settings):
    """What an HTML page must not exceed. Which pages do is the same on every machine.

    Defaults: 660 pages of news and blogs reach 1.6 MB, 60 levels and 19,300 tags.
    """

    # Largest body of a page, in bytes; larger ones are refused.
    max_bytes: int = Field(default=10 * 2**20, gt=0)
    # Most levels of nested elements; browsers stop at 512. Extraction takes time with their square:
    # 10,000 levels 1.7 s, 100,000 minutes. Pages of at most four tags a level are not looked at.
    max_depth: int = Field(default=512, gt=0)
    # Most tags and comments (places where a "<" stands) in a page.
    max_nodes: int = Field(default=500_000, gt=0)


class Resiliparse(HTMLExtractor):
    """HTML by resiliparse (Bevendorff et al. 2018 and after); plain text passes through.

    On 181 pages with known text it keeps .980 of what should be kept at a precision of .878
    (4-gram shingles; trafilatura .972 and .929), 16 to 25 times as fast as trafilatura.
    """

    kind: Literal["Resiliparse"] = "Resiliparse"
    main_content: bool = True  # whether to drop navigation, headers and footers
    list_bullets: bool = True  # whether list items keep a bullet
    # Whether to keep the alternative texts of images: captions at best, file names at worst.
    alt_texts: bool = False
    comments: bool = False  # whether to keep sections of readers' comments


class MainContent(HTMLExtractor):
    """The article of a page, at one of three prices; docs/performance.md has their figures.

    `fast` is resiliparse's main content as it stands. `balanced` cuts that into blocks and lets
    trees trained for it drop the furniture left in it; where they leave almost nothing, it looks
    at the whole page. `precise` lets the trees and trafilatura vote on the blocks of those pages,
    four in five, that the trees are not quite sure of, at 1.3 times trafilatura's price.
    """

    kind: Literal["MainContent"] = "MainContent"
    quality: Quality = "balanced"  # `fast`, `balanced` or `precise`: the better, the slower
    list_bullets: bool = True  # whether list items keep a bullet


class Trafilatura(HTMLExtractor):
    """HTML by trafilatura (Barbaresi 2021), alone: 10 times as dear as MainContent."""

    kind: Literal["Trafilatura"] = "Trafilatura"
    # Most tags and comments in a page; time outgrows them: 2.2 s for 49,000, more than 60 s for
    # 499,000.
    max_nodes: int = Field(default=TRAFILATURA_NODES, gt=0)
    favour: Favour = "balance"  # what to prefer in doubt: precision, recall, or a balance of both
    tables: bool = True  # whether to keep tables
    comments: bool = False  # whether to keep sections of readers' comments


Extractor = Annotated[
    MainContent | Resiliparse | Trafilatura | PlainText, Field(discriminator="kind")
]
