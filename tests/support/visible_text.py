"""The visible characters of a page by a slow walk over the parser's tree, in plain Python."""

from typing import Final

from resiliparse.parse.html import ElementNode, HTMLTree, Node, NodeType


def _name_set(names: str) -> frozenset[str]:
    return frozenset(names.split())


HIDDEN: Final = _name_set(
    "head title template svg canvas select datalist textarea object audio video map script style "
    "iframe noembed noframes annotation annotation-xml mphantom"
)
BLOCKS: Final = _name_set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend li "
    "listing main menu nav noscript ol p pre search section summary table tbody tfoot thead "
    "tr ul xmp plaintext"
)
HIDDEN_INLINE: Final = _name_set(
    "katex-html mathjax mathjax_preview mathjax_svg mathjax_chtml sr-only visually-hidden "
    "visuallyhidden screen-reader-text a11y-hidden mw-editsection mw-cite-backlink"
)
_NOT_SEARCHED: Final = _name_set("math svg script style iframe noembed noframes")


def list_visible_characters(tree: HTMLTree) -> str:
    """Return the text of all visible nodes without white space and control characters.

    Of a formula that has TeX, only the TeX is visible. Not for pages with raised numbers, line
    numbers, buttons in code or links of headings to themselves, which the walk rewrites or drops by
    looking at where they are and what they hold.
    """
    parts: list[str] = []
    if tree.document is not None:
        _collect(tree.document, parts)
    return "".join(
        sign
        for sign in "".join(parts)
        if not (sign.isascii() and ord(sign) <= 32) and sign not in "\x7f\xa0"
    )


def _collect(node: Node, parts: list[str]) -> None:
    child = node.first_child
    while child is not None:
        if child.type == NodeType.TEXT:
            parts.append(child.value or "")
        elif isinstance(child, ElementNode) and not _is_hidden(child):
            tex = _find_tex(child) if child.tag == "math" else ""
            if tex:
                parts.append(tex)
            else:
                _collect(child, parts)
        child = child.next


def _is_hidden(element: ElementNode) -> bool:
    name = element.tag
    if name in HIDDEN:
        return True
    if name in BLOCKS:
        return False
    style = (element.getattr("style") or "").replace(" ", "")
    classes = (element.getattr("class") or "").lower().split()
    return (
        element.hasattr("hidden")
        or "display:none" in style.lower()
        or not HIDDEN_INLINE.isdisjoint(classes)
    )


def _find_tex(element: ElementNode) -> str:
    """Return the TeX of a formula's first annotation in TeX that is in none of _NOT_SEARCHED."""
    child = element.first_child
    while child is not None:
        if isinstance(child, ElementNode) and child.tag not in _NOT_SEARCHED:
            start = child.first_child
            is_tex = child.tag == "annotation" and child.getattr("encoding") == "application/x-tex"
            if is_tex and start is not None and start.type == NodeType.TEXT:
                return start.value or ""
            found = _find_tex(child)
            if found:
                return found
        child = child.next
    return ""
