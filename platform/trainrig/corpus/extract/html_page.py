"""HTML pages: parsing within limits, the metadata that a page declares, and tidy white space.

The limits depend on the page alone. The metadata are title, language and day of publication.
"""

import datetime
import functools
import json
import re
from collections.abc import Iterator
from html import unescape

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import ElementNode, HTMLTree

from trainrig.corpus.extract.extractors import HTMLExtractor, NotExtracted

_TAGS_A_LEVEL = 4  # pages with fewer tags per level are not deep enough to be slow
_SHALLOW = 64  # levels: 660 real pages reach 60


def parse_html(html: str, limits: HTMLExtractor) -> HTMLTree | NotExtracted:
    """Parse `html`, or return the limit that it exceeds."""
    tags = html.count("<")
    if tags > limits.max_nodes:
        return NotExtracted("too_many_nodes")
    if contains_more_attributes(html, limits.max_attributes):
        return NotExtracted("too_many_attributes")
    tree = HTMLTree.parse(html)
    if tags > _TAGS_A_LEVEL * limits.max_depth and _is_deeper_than(tree, limits.max_depth):
        return NotExtracted("too_deep")
    return tree


# Name of an attribute and its value, if it has one; a name may begin with "=" (HTML, 13.2.5.32).
_ATTRIBUTE = re.compile(r"""[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]*))?""")
# Elements without tags inside, and comments.
_RAW_TEXT = re.compile(
    r"<(script|style|textarea|title|xmp|iframe|noembed|noframes)\b[^<>]*>.*?(?:</\1\b|\Z)"
    r"|<!--.*?(?:-->|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_TAG_NAME = re.compile(r"[A-Za-z][^\s/>]*")


def contains_more_attributes(html: str, most: int) -> bool:
    """Return whether a tag has more than `most` attributes of different names.

    The time is linear in the length of the page. A tag with "<" or ">" in a value may be missed,
    because telling these apart from the ends of tags would take longer than parsing does.
    """
    raw_text: list[tuple[int, int]] | None = None
    for at, tag in _iterate_long_tags(html, 2 * most):  # a name and a space for each attribute
        name = _TAG_NAME.match(tag)
        names: set[str] = set()
        found = _ATTRIBUTE.match(tag, name.end()) if name else None
        while found and len(names) <= most:
            names.add(found.group(1).lower())
            found = _ATTRIBUTE.match(tag, found.end())
        if len(names) > most:
            if raw_text is None:
                raw_text = [part.span() for part in _RAW_TEXT.finditer(html)]
            # Minified programs compare names without spaces, which look like tags.
            if not any(start + 1 < at < end for start, end in raw_text):
                return True
    return False


def _iterate_long_tags(html: str, shortest: int) -> Iterator[tuple[int, str]]:
    """Yield the place and inside of each tag of at least `shortest` characters but "<" and ">".

    Looking from the end of each stretch skips most of a page, whose tags are short.
    """
    at = 0
    ends = {"<": -1, ">": -1}  # next place of each sign, kept because one of them may be far away
    while at + shortest <= len(html):
        last = max(html.rfind(sign, at, at + shortest) for sign in ends)
        if last >= 0:
            at = last + 1
            continue
        for sign, place in ends.items():
            if place < at:
                found = html.find(sign, at)
                ends[sign] = found if found >= 0 else len(html)
        end = min(ends.values())
        if html[at - 1 : at] == "<":
            yield at, html[at:end]
        at = end + 1


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
    if document.query_selector(_build_depth_selector(shallow)) is None:
        return False
    return shallow == levels or document.query_selector(_build_depth_selector(levels)) is not None


@functools.cache
def _build_depth_selector(levels: int) -> str:
    # If there is a deep element, there is one that is its parent's first child.
    return "*>" * levels + "*:first-child"


# Surrogates, the byte-order mark and its noncharacter twin FFFE, soft hyphen and zero-width space
# (which split words), and all controls but tab and newline. Joiners (200C, 200D) stay, as Persian
# needs them.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ufffe\ud800-\udfff]+")
_LINE_END = re.compile("\r\n?|[\u2028\u2029\x85\x0b\x0c]")
_WIDE_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# the lookbehind starts one match per run, so the time is linear
_SPACE_BEFORE_END = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """Return `text` with one kind of line end and space, and at most one blank line in a row.

    Invisible characters are removed. Indentation stays, as code depends on it.
    """
    text = text.replace("\xa0", " ")
    # Most texts need none of these three substitutions, which are slow.
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = _LINE_END.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACE.sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _SPACE_BEFORE_END.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


_LANGUAGE_TAG = re.compile(r"([a-z]{2,3})(?:[-_]|$)")
# In order of precedence: first the names written for machines that display articles.
_DATE_NAMES = (
    "article:published_time",
    "og:article:published_time",
    "og:published_time",
    "datepublished",
    "parsely-pub-date",
    "sailthru.date",
    "article.published",
    "publish-date",
    "pubdate",
    "dc.date.issued",
    "dcterms.issued",
    "dcterms.created",
    "dc.date",
    "dcterms.date",
    "date",
)
# few elements match, and the library's selector is faster than a loop
_DATED = 'meta[content^="19"],meta[content^="20"]'
_JSON_KEY = '"datePublished"'
_FIRST_YEAR = 1990  # first year of the web; earlier dates are ignored


_SELF_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)"
    r"""([A-Za-z][\w:-]*)((?:\s(?:[^<>"'/]|/(?!>)|"[^"]*"|'[^']*')*+)?)/>"""
)


def expand_self_closed(html: str) -> str:
    """Return XHTML with an end tag for each element that a slash closes, but not for void ones.

    A parser of HTML ignores the slash, so `<title/>` would make the rest of the page a title.
    """
    return _SELF_CLOSED.sub(r"<\1\2></\1>", html)


_BODY_KEY = '"articleBody"'
_MOST_NESTED = 20  # levels of JSON-LD that are searched


def find_article_in_json(html: str) -> str:
    """Return the longest `articleBody` of the page's JSON-LD, without tags, or ""."""
    best = ""
    if _BODY_KEY not in html:
        return best
    for script in list_linked_data(html):
        try:
            data = json.loads(script, strict=False)
        except (ValueError, RecursionError):
            continue
        for body in _find_bodies(data, _MOST_NESTED):
            best = max(best, body, key=len)
    if "</" in best:
        tree = HTMLTree.parse(best)
        best = str(extract_plain_text(tree, main_content=False, alt_texts=False))
    elif "&" in best:
        best = unescape(best)
    return best


def list_linked_data(html: str) -> list[str]:
    """Return the contents of the page's scripts of JSON-LD.

    The time is linear in the length of the page, whatever it contains.
    """
    scripts: list[str] = []
    lower = html.lower()
    if len(lower) != len(html):  # a few capitals become two characters
        lower = html
    at = lower.find("<script")
    while at >= 0:
        inside = lower.find(">", at)
        end = lower.find("</script", inside) if inside >= 0 else -1
        if end < 0:
            break
        if "application/ld+json" in lower[at:inside]:
            scripts.append(html[inside + 1 : end])
        at = lower.find("<script", end)
    return scripts


def _find_bodies(data: object, levels: int) -> Iterator[str]:
    """Yield the values of `articleBody` in JSON data, down to a number of levels."""
    if not levels:
        return
    if isinstance(data, dict):
        body = data.get("articleBody")
        if isinstance(body, str):
            yield body
        for value in data.values():
            yield from _find_bodies(value, levels - 1)
    elif isinstance(data, list):
        for value in data:
            yield from _find_bodies(value, levels - 1)


def find_title(tree: HTMLTree) -> str:
    """Return the content of the page's <title> on one line, or ""."""
    return " ".join(tidy(tree.title or "").split())


def find_language(tree: HTMLTree) -> str:
    """Return the language that the page declares, as an ISO 639 code: "en" for "en-GB"; or ""."""
    root = tree.document.document_element if tree.document else None
    tag = _LANGUAGE_TAG.match((root.getattr("lang") or "").strip().lower()) if root else None
    return tag.group(1) if tag else ""


def find_date(tree: HTMLTree, html: str) -> str:
    """Return the day of publication from the page's head, from JSON-LD or from a <time>, or ""."""
    return _find_date_in_head(tree.head) or _find_date_in_json(html) or _find_date_in_time(tree)


def _find_date_in_head(head: ElementNode | None) -> str:
    best = ""
    best_rank = len(_DATE_NAMES)
    for meta in head.query_selector_all(_DATED).values() if head else ():
        name = meta.getattr("property") or meta.getattr("name") or meta.getattr("itemprop") or ""
        name = name.lower()
        if name in _DATE_NAMES[:best_rank]:
            found = parse_day(meta.getattr("content") or "")
            if found:
                best = found
                best_rank = _DATE_NAMES.index(name)
    return best


def _find_date_in_json(html: str) -> str:
    at = html.find(_JSON_KEY)
    after = html[at + len(_JSON_KEY) : at + len(_JSON_KEY) + 60] if at >= 0 else ""
    value = after.lstrip().removeprefix(":").lstrip()
    return parse_day(value[1:]) if value.startswith('"') else ""


def _find_date_in_time(tree: HTMLTree) -> str:
    first = tree.body.query_selector("time[datetime]") if tree.body else None
    return parse_day(first.getattr("datetime") or "") if first else ""


def parse_day(text: str) -> str:
    """Return the ISO 8601 day at the start of `text`, or ""."""
    day = text.strip()[:10].replace("/", "-")
    if len(day) == 8 and day.isascii() and day.isdigit():
        day = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    try:
        found = datetime.date.fromisoformat(day)
    except ValueError:
        return ""
    return day if len(day) == 10 and found.year >= _FIRST_YEAR else ""
