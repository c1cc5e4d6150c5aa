"""Evidence of a page's kind: what the page declares, else the features of its text.

Declared evidence counts first: types of schema.org, the software that made the page, `og:type`, and
class names that content management systems give the body. Only a page that declares nothing is
judged by its text. The name of the host is never looked at.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Final, NamedTuple

from resiliparse.parse.html import ElementNode, HTMLTree

from trainrig.corpus.extract import page_kinds
from trainrig.corpus.extract.block_scores import cut_tree
from trainrig.corpus.extract.html_page import list_linked_data
from trainrig.corpus.extract.page_blocks import PageBlocks
from trainrig.corpus.extract.page_kind_features import (
    MOSTLY_LINKS,
    TextFeatures,
    judge_text,
    measure_text,
)
from trainrig.corpus.extract.page_kinds import KindOfPage

# Items of one type from which on a page is a list of them. A product stands beside related ones.
_SEVERAL: Final = 4
_SPHINX_SETTINGS: Final = re.compile(r"var\s+DOCUMENTATION_OPTIONS\s*=")
_POST_ID: Final = re.compile(r"(?:post|msg|message|reply|answer)[-_]?(\d+)", re.IGNORECASE)
# Properties of JSON-LD whose items are the page's own, as "@graph" lists them. An author or a
# product inside an article is not the page.
_INTO: Final = ("@graph", "mainEntity", "mainEntityOfPage")
_MOST_NESTED: Final = 5  # levels of these properties
# Items that stand alone or are the main entity of another one.
_ITEMS: Final = "[itemtype]:not([itemprop]), [itemtype][itemprop~='mainEntity' i]"


def count_item_types(tree: HTMLTree, html: str) -> Counter[str]:
    """Count the main items of a page by type, in lower case and without the vocabulary's address.

    Args:
        tree: parsed page.
        html: source of the page.
    """
    found: Counter[str] = Counter()
    # finding the key is much faster than looking for scripts, and many pages have none
    if '"@type"' in html:
        for script in list_linked_data(html):
            try:
                data = json.loads(script, strict=False)
            except (ValueError, RecursionError):
                continue
            found.update(_iterate_types(data, _MOST_NESTED))
    document = tree.document
    if document is None:
        return found
    for item in document.query_selector_all(_ITEMS).values():
        found.update(_split_types(item.getattr("itemtype") or ""))
    for item in document.query_selector_all("[typeof]:not([property])").values():
        found.update(_split_types(item.getattr("typeof") or ""))
    return found


def _iterate_types(data: object, levels: int) -> Iterator[str]:
    if not levels:
        return
    if isinstance(data, list):
        for item in data:
            yield from _iterate_types(item, levels)
    elif isinstance(data, dict):
        stated = data.get("@type")
        for name in stated if isinstance(stated, list) else [stated]:
            if isinstance(name, str):
                yield from _split_types(name)
        for key in _INTO:
            yield from _iterate_types(data.get(key), levels - 1)


def _split_types(stated: str) -> set[str]:
    """Return the types of one item: "http://schema.org/Article" and "schema:Article" are one."""
    return {
        name.rstrip("/#").replace("#", "/").replace(":", "/").rpartition("/")[2].lower()
        for name in stated.split()
    }


@cache
def _compile_word_starts(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})")


class JudgedPage(NamedTuple):
    """The kind of a page, and its blocks, if they were needed to find the kind."""

    page_kind: KindOfPage
    blocks: PageBlocks | None


def find_page_kind(tree: HTMLTree, html: str, is_dated: bool) -> JudgedPage:
    """Return the kind of the page `tree`, which was parsed from `html`, with the evidence for it.

    `is_dated` says whether the page declares a day of publication, as articles do. Cutting a page
    into blocks may change the tree, so use the blocks of the result where there are some.
    """
    page = PageEvidence(tree, html)
    found = next(filter(None, (find(page) for find in _RULES)), None)
    if found is None:
        found = KindOfPage(*judge_text(page.text, is_dated, page.count_numbered_posts()))
    return JudgedPage(found, page.blocks)


class PageEvidence:
    """A page with what the rules ask of it."""

    def __init__(self, tree: HTMLTree, html: str) -> None:
        """Read the declarations of a page."""
        self._tree = tree
        self._html = html
        self.blocks: PageBlocks | None = None  # the blocks of the page, once they were needed
        self.types: Counter[str] = count_item_types(tree, html)
        metas = [
            (
                (meta.getattr("property") or meta.getattr("name") or "").strip().lower(),
                (meta.getattr("content") or "").strip().lower(),
            )
            for meta in self._select("meta[content]")
        ]
        self.generators = [content for name, content in metas if name == "generator"]
        self.open_graph = [content for name, content in metas if name == "og:type"]
        body = tree.body
        self.body_classes = ((body.getattr("class") or "") if body else "").lower().split()

    def _select(self, selector: str) -> list[ElementNode]:
        document = self._tree.document
        return list(document.query_selector_all(selector).values()) if document else []

    @cached_property
    def text(self) -> TextFeatures:
        """The features of the text outside furniture."""
        self.blocks = cut_tree(self._tree)
        return measure_text(self.blocks)

    def contains(self, selector: str) -> bool:
        """Return whether any element matches `selector`."""
        document = self._tree.document
        return document is not None and document.query_selector(selector) is not None

    def find_type(self, names: tuple[str, ...]) -> str:
        """Return the first of `names` that an item of the page has as its type, or ""."""
        return next((name for name in names if self.types[name]), "")

    def find_generator(self, names: tuple[str, ...]) -> str:
        """Return one of `names` with which a word of the page's generator begins, or ""."""
        pattern = _compile_word_starts(names)
        return next((name[0] for said in self.generators if (name := pattern.search(said))), "")

    def find_mark(self, marks: Mapping[str, str]) -> str:
        """Return the name of the first of `marks` of which an element is in the page, or ""."""
        if not self.contains(", ".join(marks.values())):
            return ""
        return next(name for name, selector in marks.items() if self.contains(selector))

    @property
    def contains_sphinx_settings(self) -> bool:
        """True if a script in the head defines the settings of Sphinx, as until version 3."""
        # finding the words is much faster than a selector is, and few pages have them
        if "DOCUMENTATION_OPTIONS" not in self._html:
            return False
        scripts = self._select("head script")
        return any(_SPHINX_SETTINGS.search(script.text or "") for script in scripts)

    def find_body_class(self, names: tuple[str, ...]) -> str:
        """Return the first of `names` that is a class of the body, or ""."""
        return next((name for name in names if name in self.body_classes), "")

    def count_numbered_posts(self) -> int:
        """Count the posts that elements are numbered as, if they hold most of the text; else 0."""
        numbered = page_kinds.NUMBERED_POST
        found = [
            (post, number[1])
            for post in self._select(numbered)
            if (number := _POST_ID.fullmatch(post.id or ""))
        ]
        # Only outer elements are measured: no text counts twice, and the time is linear.
        inner = {post.id for post in self._select(f"{numbered} {numbered}")}
        characters = sum(
            len(post.text or "")
            for post, _ in found
            # an entry of a blog has a heading
            if post.id not in inner and post.query_selector("h1, h2, h3") is None
        )
        # a post may be in several elements of its number
        posts = {number for _, number in found}
        return len(posts) if 2 * characters >= self.text.characters else 0


def _find_discussion(page: PageEvidence) -> KindOfPage | None:
    if name := page.find_type(page_kinds.DISCUSSION_TYPES):
        return KindOfPage("forum", f"schema.org {name}")
    if page.types[page_kinds.BOARD_POST]:
        return KindOfPage("forum", f"sioc {page_kinds.BOARD_POST}")
    if page.find_type(page_kinds.ARTICLE_TYPES):
        return None  # software of forums may show articles, with comments as posts
    if name := page.find_mark(page_kinds.POST_MARKS):
        return KindOfPage("forum", f"posts of {name}")
    return None


def _find_documentation(page: PageEvidence) -> KindOfPage | None:
    if name := page.find_generator(page_kinds.DOCUMENTATION_GENERATORS):
        evidence = f"generator {name}"
    elif page.contains_sphinx_settings:
        evidence = "settings of sphinx"
    elif name := page.find_mark(page_kinds.DOCUMENTATION_MARKS):
        evidence = f"elements of {name}"
    elif name := page.find_type(page_kinds.MANUAL_TYPES):
        evidence = f"schema.org {name}"
    else:
        return None
    if page.contains(page_kinds.BLOG_POST):
        return KindOfPage("article", f"{evidence}, blog")
    if page.text.links >= MOSTLY_LINKS:
        return KindOfPage("listing", f"{evidence}, links")
    return KindOfPage("documentation", evidence)


def _find_by_schema(page: PageEvidence) -> KindOfPage | None:
    if name := page.find_type(page_kinds.COLLECTION_TYPES):
        return KindOfPage("listing", f"schema.org {name}")
    states_article = "article" in page.open_graph
    if name := page.find_type(page_kinds.ARTICLE_TYPES):
        if page.types[name] >= _SEVERAL and not states_article:
            return KindOfPage("listing", f"schema.org several {name}")
        return KindOfPage("article", f"schema.org {name}")
    if states_article:
        return None  # a review has the product as an item
    if name := page.find_type(page_kinds.PRODUCT_TYPES):
        if page.types[name] >= _SEVERAL and not _states_product(page):
            return KindOfPage("listing", f"schema.org several {name}")
        return KindOfPage("product", f"schema.org {name}")
    if name := page.find_type(page_kinds.LIST_TYPES):
        return KindOfPage("listing", f"schema.org {name}")
    return None


def _states_product(page: PageEvidence) -> bool:
    return any("product" in stated for stated in page.open_graph)


def _find_by_head(page: PageEvidence) -> KindOfPage | None:
    if _states_product(page):
        return KindOfPage("product", "og:type product")
    # Many systems state that every page is an article, so those without prose are left to the text.
    if "article" in page.open_graph and page.text.prose_blocks:
        return KindOfPage("article", "og:type article")
    return None


def _find_by_body_class(page: PageEvidence) -> KindOfPage | None:
    if name := page.find_body_class(page_kinds.PRODUCT_BODY):
        return KindOfPage("product", f"body {name}")
    if name := page.find_body_class(page_kinds.LISTING_BODY):
        return KindOfPage("listing", f"body {name}")
    if name := page.find_body_class(page_kinds.ARTICLE_BODY):
        return KindOfPage("article", f"body {name}")
    return None


def _find_forum_index(page: PageEvidence) -> KindOfPage | None:
    if name := page.find_generator(page_kinds.FORUM_GENERATORS):
        return KindOfPage("listing", f"generator {name}")
    return None


def _find_shop(page: PageEvidence) -> KindOfPage | None:
    if page.contains(page_kinds.PRICE) and page.contains(page_kinds.CART):
        return KindOfPage("product", "price and cart")
    return None


_RULES: Final[tuple[Callable[[PageEvidence], KindOfPage | None], ...]] = (
    _find_discussion,
    _find_documentation,
    _find_by_schema,
    _find_by_head,
    _find_by_body_class,
    _find_forum_index,
    _find_shop,
)
