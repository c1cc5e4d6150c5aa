"""Parses HTML into a tree, within limits that depend on the page alone."""

import functools

from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.kinds import HTMLExtractor
from trainrig.corpus.extract.outcome import NotExtracted

_TAGS_A_LEVEL = 4  # pages with fewer tags per level are not deep enough to be slow
_SHALLOW = 64  # levels: 660 real pages reach 60


def parse(html: str, limits: HTMLExtractor) -> HTMLTree | NotExtracted:
    """Parse `html`, or return the limit that it exceeds."""
    tags = html.count("<")
    if tags > limits.max_nodes:
        return NotExtracted("too_many_nodes")
    tree = HTMLTree.parse(html)
    if tags > _TAGS_A_LEVEL * limits.max_depth and _is_deeper_than(tree, limits.max_depth):
        return NotExtracted("too_deep")
    return tree


def _is_deeper_than(tree: HTMLTree, levels: int) -> bool:
    """Return whether any element has more than `levels` ancestors.

    A selector of chained children runs in the library's native code, 100 times as fast as walking
    the tree. A short selector goes first, since most pages are shallow and long selectors take time
    to parse.
    """
    document = tree.document
    if document is None:
        return False
    shallow = min(levels, _SHALLOW)
    if document.query_selector(_build_selector(shallow)) is None:
        return False
    return shallow == levels or document.query_selector(_build_selector(levels)) is not None


@functools.cache
def _build_selector(levels: int) -> str:
    # If there is a deep element, there is one that is its parent's first child.
    return "*>" * levels + "*:first-child"
