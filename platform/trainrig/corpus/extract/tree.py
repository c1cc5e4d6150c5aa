"""HTML to a tree, within limits that depend on the page alone."""

import functools

from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.kinds import HTMLExtractor
from trainrig.corpus.extract.outcome import NotExtracted

_TAGS_A_LEVEL = 4  # a page of fewer is not deep enough to cost anything
_SHALLOW = 64  # levels: 660 real pages reach 60


def parse(html: str, limits: HTMLExtractor) -> HTMLTree | NotExtracted:
    """The tree of `html`, or which limit it breaks."""
    tags = html.count("<")
    if tags > limits.max_nodes:
        return NotExtracted("too_many_nodes")
    tree = HTMLTree.parse(html)
    if tags > _TAGS_A_LEVEL * limits.max_depth and _is_deeper_than(tree, limits.max_depth):
        return NotExtracted("too_deep")
    return tree


def _is_deeper_than(tree: HTMLTree, levels: int) -> bool:
    """Whether any element has that many others around it.

    A chain of child selectors asks the library's own code: 100 times as fast as walking the tree. A
    short one first, as most pages are shallow, and long ones take time to read.
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
    # Where there is a deep element there is one that is the first of its parent's.
    return "*>" * levels + "*:first-child"
