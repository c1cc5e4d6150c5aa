"""Types of schema.org and SIOC that a page declares for its items: in JSON-LD, microdata, RDFa."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.html_page import list_linked_data

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
