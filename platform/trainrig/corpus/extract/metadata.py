"""Metadata that a page declares: title, language, day of publication."""

import datetime
import re

from resiliparse.parse.html import ElementNode, HTMLTree

from trainrig.corpus.extract.tidy import tidy

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
    return _from_head(tree.head) or _from_json(html) or _from_time(tree)


def _from_head(head: ElementNode | None) -> str:
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


def _from_json(html: str) -> str:
    at = html.find(_JSON_KEY)
    after = html[at + len(_JSON_KEY) : at + len(_JSON_KEY) + 60] if at >= 0 else ""
    value = after.lstrip().removeprefix(":").lstrip()
    return parse_day(value[1:]) if value.startswith('"') else ""


def _from_time(tree: HTMLTree) -> str:
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
