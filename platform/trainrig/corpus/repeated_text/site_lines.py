"""Removal of lines that many pages of one site have: boilerplate that is rare in the corpus.

Menus, licence footers and lines such as "last generated on ..." are on each page of a site, and on
no other site. There are three phases. Each is a pure function of texts and files, so any number of
workers can share it:

1. `count_site_lines`, for each split: write the sorted 64-bit keys of its lines near the edges of
   pages, with the number of pages. The key depends on source, site, line and edge. One more key for
   each site counts its pages.
2. `find_frequent_keys`, for each range of keys: find those on enough pages, and write them by the
   split that has them. So a split reads no other split's keys: the cost does not grow with sites.
3. `cut_site_lines`, for each split: locate lines on enough of their site's pages.

Lines are the same if their normal forms are (see common_lines.py). The two edges count apart, so a
line that ends pages is not removed where it begins one. Digits differ at the head of a page, where
a title often counts ("Lesson 3"). At its foot, each run of numbers and names of months and days is
one number, if `blank_numbers` is on.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import Int64s, UInt64s
from trainrig.corpus.repeated_text import page_edges, record_files
from trainrig.corpus.repeated_text.common_lines import CommonLines, NormalForm, find_units
from trainrig.corpus.repeated_text.page_edges import Edge, PageLine
from trainrig.corpus.repeated_text.record_files import Records, RemovedSpans, save_spans
from trainrig.corpus.url_blocklist import is_public_suffix

SITE_LINES = "site_lines"  # `by` of the removed spans


class SiteLines(Settings):
    """Removes lines that many pages of one site have, such as menus, licences and contact lines.

    Each source is counted by itself. Pages without the URL of a site stay as they are.
    """

    kind: Literal["SiteLines"] = "SiteLines"
    # Pages of the same host, without "www.", or registered domain are one site.
    site: Literal["host", "domain"] = "host"
    # Fewest pages of the site that have a line that is removed.
    min_pages: int = Field(default=5, ge=2)
    # Smallest share of the site's pages that have a line that is removed. With where = "edges", it
    # is twice this share if one other line stays between the line and the edge of the page, three
    # times for two lines, and so on.
    min_share: float = Field(default=0.2, gt=0, le=1)
    # Fewest characters, without punctuation, of a line that is removed.
    min_characters: int = Field(default=3, ge=1)
    # Where lines are counted and removed: near the head and the foot of a page, or on all of it.
    where: Literal["edges", "anywhere"] = "edges"
    # With where = "edges": number of lines at the head, and at the foot, that are counted.
    edge_lines: int = Field(default=20, ge=1)
    # Whether numbers and dates are ignored when lines at the foot are compared.
    blank_numbers: bool = True
    # Whether lines are removed; false: only the column `site_lines_share` is written.
    remove: bool = True
    # Sources whose pages are counted and cut; None: all.
    sources: tuple[str, ...] | None = None

    def list_edges(self, text: str) -> tuple[list[PageLine], list[PageLine]]:
        """Return the lines to count at the head, and at the foot, in the order of the page."""
        if self.where == "anywhere":
            return [], page_edges.list_foot_lines(text, len(text) + 1)
        return (
            page_edges.list_head_lines(text, self.edge_lines),
            page_edges.list_foot_lines(text, self.edge_lines),
        )


_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#:\[\]]+)")


def find_site(url: str | None, site: Literal["host", "domain"]) -> str:
    """Return the host of `url` without "www.", or its registered domain; "" if it has none."""
    found = _HOST.match(url or "")
    if found is None:
        return ""
    host = found.group(1).lower().strip(". ").removeprefix("www.")
    return host if site == "host" else _find_domain(host)


@functools.lru_cache(maxsize=65_536)
def _find_domain(host: str) -> str:
    labels = host.split(".")
    if labels[-1].isdigit():  # an IP address
        return host
    for count in range(2, len(labels)):
        parent = ".".join(labels[-count:])
        if not is_public_suffix(parent):
            return parent
    return host


# Names of months and days in six languages, and their short forms.
_DATE_NAMES = (
    "january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|am|pm|utc|gmt|monday|tuesday|wednesday|"
    "thursday|friday|saturday|sunday|mon|tue|tues|wed|thu|thur|thurs|fri|sat|sun|januar|"
    "februar|märz|mai|juni|juli|oktober|dezember|okt|dez|uhr|montag|dienstag|mittwoch|"
    "donnerstag|freitag|samstag|sonntag|janvier|février|mars|avril|juin|juillet|août|"
    "septembre|octobre|novembre|décembre|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|"
    "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|"
    "diciembre|lunes|martes|miércoles|jueves|viernes|sábado|domingo|gennaio|febbraio|aprile|"
    "maggio|giugno|luglio|settembre|ottobre|dicembre|janeiro|fevereiro|março|maio|junho|"
    "julho|setembro|outubro|novembro|dezembro"
)
_NUMBER = rf"(?:\d+(?:st|nd|rd|th)?|\b(?:{_DATE_NAMES})\b)"
_NUMBERS = re.compile(rf"{_NUMBER}(?:[\s.,:/–-]*{_NUMBER})*", re.IGNORECASE)
_DIGITS = re.compile(r"\d+(?:[\s.,:/–-]*\d+)*")
# Most characters of a line in which names of months and days are looked for, at 40 ns a character.
_DATED = 200
_DIGIT = re.compile(r"\d")
# Digits as characters for private use, which the normal form leaves as they are.
_APART = {ord("0") + digit: chr(0xE000 + digit) for digit in range(10)}
_LINES = CommonLines(unit="line")
_FOOT = np.uint64(0x9E3779B97F4A7C15)  # any odd number: keys of the foot differ from the head's


def blank_numbers(line: str) -> str:
    """Return `line` with each run of numbers, and of months and days around them, as one 0.

    Names of months and days stay as they are in lines of over 200 characters, or without a digit.
    """
    if not _DIGIT.search(line):
        return line
    return (_NUMBERS if len(line) <= _DATED else _DIGITS).sub("0", line)


def _keep_digits_apart(line: str) -> str:
    return line.translate(_APART) if _DIGIT.search(line) else line


def _salt_site(source: str, site: str) -> int:
    name = f"{source}\0{site}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") or 1


Batch = tuple[Sequence[str], Sequence[str | None]]
"""Texts of pages and their URLs."""


@dataclass(frozen=True)
class EdgeLines:
    """Lines near one edge of a batch of pages, in the order of pages and lines."""

    pages_L: Int64s  # position of the page in the batch
    keys_L: UInt64s  # 0 for a line that is too short
    lines: Sequence[PageLine]


@dataclass(frozen=True)
class SitePages:
    """A batch of pages: their sites and the lines near their edges."""

    sites: Sequence[str]  # "" for a page that stays as it is
    salts_P: UInt64s  # key of each page's site; 0 for none
    head: EdgeLines
    foot: EdgeLines


def find_site_pages(
    batch: Batch, settings: SiteLines, source: str, normal_form: NormalForm
) -> SitePages:
    """Return the sites of a batch of pages, and the keys of the lines near their edges."""
    texts, urls = batch
    counted = settings.sources is None or source in settings.sources
    sites = [find_site(url, settings.site) if counted else "" for url in urls]
    salts = {site: _salt_site(source, site) if site else 0 for site in set(sites)}
    salts_P = np.array([salts[site] for site in sites], np.uint64)
    edges = [
        settings.list_edges(text) if site else ([], [])
        for text, site in zip(texts, sites, strict=True)
    ]
    form_foot = blank_numbers if settings.blank_numbers else _keep_digits_apart
    heads = [_keep_digits_apart(line.text) for head, _ in edges for line in head]
    feet = [form_foot(line.text) for _, foot in edges for line in foot]
    return SitePages(
        sites,
        salts_P,
        _key_lines([head for head, _ in edges], heads, settings, salts_P, normal_form),
        _key_lines([foot for _, foot in edges], feet, settings, salts_P ^ _FOOT, normal_form),
    )


def _key_lines(
    edges: Sequence[Sequence[PageLine]],
    texts: Sequence[str],
    settings: SiteLines,
    salts_P: UInt64s,
    normal_form: NormalForm,
) -> EdgeLines:
    """Return the lines of one edge with their keys; the keys are hashes of `texts`."""
    pages_L = np.repeat(np.arange(len(edges)), [len(lines) for lines in edges])
    units = find_units(texts, _LINES, normal_form)
    keys_L = np.maximum(units.keys_U ^ salts_P[pages_L], np.uint64(1))
    keys_L[units.lengths_U < settings.min_characters] = 0
    return EdgeLines(pages_L, keys_L, [line for lines in edges for line in lines])


COUNT = np.dtype([("key", "<u8"), ("count", "<i8")])


def count_site_lines(
    batches: Iterable[Batch], settings: SiteLines, path: str, source: str
) -> dict[str, int]:
    """Count the pages of each site and line of a split, and write the counts to `path` (phase 1).

    It takes the memory of a batch, and 16 bytes for each different line of a site, twice. Returns
    the number of `pages`, and of `distinct` records.
    """
    normal_form = NormalForm()
    counted = [np.empty(0, COUNT)]
    pages = 0
    for batch in batches:
        found = find_site_pages(batch, settings, source, normal_form)
        counted.append(_count_pages(found))
        pages += len(found.sites)
    merged = record_files.merge_records(np.concatenate(counted))
    record_files.save_by_key(path, merged)
    return {"pages": pages, "distinct": len(merged)}


def _count_pages(found: SitePages) -> Records:
    """Return the number of pages of each key, sorted by key."""
    numbers = np.arange(len(found.sites))
    keys = np.concatenate([found.salts_P, found.head.keys_L, found.foot.keys_L])
    pages = np.concatenate([numbers, found.head.pages_L, found.foot.pages_L])
    order = np.lexsort((pages, keys))
    keys = keys[order]
    pages = pages[order]
    fresh = keys != 0
    fresh[1:] &= (keys[1:] != keys[:-1]) | (pages[1:] != pages[:-1])
    records = np.empty(int(fresh.sum()), COUNT)
    records["key"] = keys[fresh]
    records["count"] = 1
    return record_files.merge_records(records)


# Bytes of memory of `find_frequent_keys` for a record, measured with keys that all differ.
_RECORD_MEMORY = 88


def choose_site_range_count(distinct: int, memory: int) -> int:
    """Return the number of key ranges for `distinct` records, given memory in bytes."""
    return min(record_files.SLICES, max(1, -(-distinct * _RECORD_MEMORY // memory)))


def find_frequent_keys(
    paths: Sequence[str], part: int, parts: int, settings: SiteLines, path: str
) -> dict[str, int]:
    """Find the keys on enough pages of all splits, in one range of keys (phase 2).

    The files of phase 1 are at `paths`; range `part` of `parts` is read. The file at `path` gets a
    slice for each of `paths`, of the frequent keys that this one has, with the counts of all splits
    together. It takes up to 88 bytes of memory for each record of the range. Returns the number of
    `frequent` keys.
    """
    by_split = [record_files.load_key_range([file], COUNT, part, parts) for file in paths]
    merged = record_files.merge_records(np.concatenate([np.empty(0, COUNT), *by_split]))
    frequent = merged[merged["count"] >= settings.min_pages]
    slices = [_select_records(frequent, records["key"]) for records in by_split]
    bounds = np.cumsum([0, *map(len, slices)])
    record_files.save_slices(path, np.concatenate([np.empty(0, COUNT), *slices]), bounds)
    return {"frequent": len(frequent)}


def _select_records(records: Records, keys: UInt64s) -> Records:
    """Return the records that have one of `keys`. `records` are sorted by key."""
    places = _find_places(records, keys)
    selected: Records = records[places[places >= 0]]
    return selected


def _read_counts(keys: UInt64s, frequent: Records) -> Int64s:
    """Return the count of each of `keys`, or 0 if it is not among the `frequent` records."""
    places = _find_places(frequent, keys)
    counts = np.zeros(len(keys), np.int64)
    counts[places >= 0] = frequent["count"][places[places >= 0]]
    return counts


def _find_places(records: Records, keys: UInt64s) -> Int64s:
    """Return the index of each of `keys` in `records`, which are sorted by key; -1: none."""
    if not len(records):
        return np.full(len(keys), -1)
    held = np.ascontiguousarray(records["key"])
    places = np.minimum(np.searchsorted(held, keys), len(held) - 1)
    return np.where(held[places] == keys, places, -1)


@dataclass(frozen=True)
class SiteExample:
    """A line that was removed from pages of a site, or marked on them."""

    source: str
    site: str
    site_pages: int
    key: int  # key of the line at its edge of the page
    line: str  # the first characters of the line, as one of the pages has it
    line_pages: int  # pages of the site that have the line near the same edge
    removed_pages: int  # pages that the line was removed from, or marked on


SITES_SHOWN = 20
LINES_SHOWN = 5  # lines shown for each site
EXCERPT = 160  # characters of a line


def merge_examples(examples: Iterable[SiteExample]) -> list[SiteExample]:
    """Return the most frequent lines of the sites with most pages.

    Examples of the same line are merged. The examples of all splits may be merged in any order and
    in any groups: the result is the same.
    """
    lines: dict[tuple[str, str, int], SiteExample] = {}
    for example in examples:
        place = (example.source, example.site, example.key)
        known = lines.get(place)
        lines[place] = (
            example
            if known is None
            else dataclasses.replace(
                known,
                line=min(known.line, example.line),
                removed_pages=known.removed_pages + example.removed_pages,
            )
        )
    by_site: dict[tuple[int, str, str], list[SiteExample]] = {}
    for example in sorted(lines.values(), key=lambda e: (-e.line_pages, e.key)):
        site = (-example.site_pages, example.source, example.site)
        by_site.setdefault(site, []).append(example)
    return [
        example for site in sorted(by_site)[:SITES_SHOWN] for example in by_site[site][:LINES_SHOWN]
    ]


def cut_site_lines(
    batches: Iterable[Batch],
    frequent: Sequence[str],
    split: int,
    settings: SiteLines,
    spans: str,
    marks: str,
    source: str,
) -> tuple[dict[str, int], list[SiteExample]]:
    """Find the spans of boilerplate in a split, and write them to `spans` and `marks` (phase 3).

    The texts must be the same as in phase 1; `frequent` are the files of phase 2; `split` is the
    position of this split among the files of phase 1. The file at `spans` has the spans to remove:
    none with `remove = false`. The file at `marks` has them always. A line is removed with the
    blank lines after it. It takes the memory of a batch, and 16 bytes for each frequent key of the
    split. Returns counts, and examples of the lines.
    """
    found = [record_files.load_slices(file, COUNT, split, split + 1) for file in frequent]
    keys = record_files.merge_records(np.concatenate([np.empty(0, COUNT), *found]))
    normal_form = NormalForm()
    rows: list[tuple[int, int, int]] = []
    examples: list[SiteExample] = []
    counts = dict.fromkeys(("documents", "characters", "lines_marked"), 0)
    for batch in batches:
        pages = find_site_pages(batch, settings, source, normal_form)
        lines = _find_boilerplate(pages, keys, settings)
        for page, removed in lines.items():
            starts = [line.start for _, line in removed]
            counts["lines_marked"] += len(set(starts))
            rows += [
                (counts["documents"] + page, span.start, span.end)
                for span in page_edges.build_removed_spans(batch[0][page], starts, SITE_LINES)
            ]
        examples = merge_examples([*examples, *_list_examples(pages, lines, keys, source)])
        counts["documents"] += len(batch[0])
        counts["characters"] += sum(map(len, batch[0]))
    marked = np.array(rows, np.int64).reshape(-1, 3)
    save_spans(marks, RemovedSpans(*marked.T))
    cut = marked if settings.remove else marked[:0]
    save_spans(spans, RemovedSpans(*cut.T))
    for name, some in (("marked", marked), ("cut", cut)):
        counts[f"documents_{name}"] = len(np.unique(some[:, 0]))
        counts[f"characters_{name}"] = int((some[:, 2] - some[:, 1]).sum())
    return counts, examples


def _find_boilerplate(
    pages: SitePages, keys: Records, settings: SiteLines
) -> dict[int, list[tuple[int, PageLine]]]:
    """Return the lines to remove with their keys, for each page of a batch that has any."""
    found: dict[int, list[tuple[int, PageLine]]] = {}
    totals_P = _read_counts(pages.salts_P, keys)
    edges: tuple[Edge, Edge] = ("head", "page" if settings.where == "anywhere" else "foot")
    for edge, found_at in zip(edges, (pages.head, pages.foot), strict=True):
        totals_L = np.maximum(totals_P[found_at.pages_L], 1)
        shares_L = _read_counts(found_at.keys_L, keys) / totals_L
        touched = np.unique(found_at.pages_L[shares_L >= settings.min_share])
        firsts = np.searchsorted(found_at.pages_L, touched).tolist()
        ends = np.searchsorted(found_at.pages_L, touched, side="right").tolist()
        for page, first, end in zip(touched.tolist(), firsts, ends, strict=True):
            lines = found_at.lines[first:end]
            shares = shares_L[first:end].tolist()
            removed = page_edges.choose_removed_lines(lines, shares, settings.min_share, edge)
            found.setdefault(page, []).extend(
                (int(found_at.keys_L[first + nth]), lines[nth]) for nth in removed
            )
    return {page: lines for page, lines in found.items() if lines}


def _list_examples(
    pages: SitePages,
    lines: Mapping[int, Sequence[tuple[int, PageLine]]],
    keys: Records,
    source: str,
) -> Iterator[SiteExample]:
    totals_P = _read_counts(pages.salts_P, keys).tolist()
    for page, removed in lines.items():
        # A line near both edges of a short page is shown once, as one of the foot.
        by_start = {line.start: (key, line.text) for key, line in removed}
        by_key = {key: text for key, text in reversed(by_start.values()) if key}
        counts = _read_counts(np.array([*by_key], np.uint64), keys).tolist()
        for (key, text), count in zip(by_key.items(), counts, strict=True):
            shown = text.strip()[:EXCERPT]
            yield SiteExample(source, pages.sites[page], totals_P[page], key, shown, count, 1)
