"""The three phases of the removal of lines of sites, run over whole corpora."""

import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.removed_spans import remove_spans
from trainrig.corpus.repeated_text import page_edges, record_files
from trainrig.corpus.repeated_text.record_files import load_spans
from trainrig.corpus.repeated_text.site_lines import (
    COUNT,
    SITE_LINES,
    SiteExample,
    SiteLines,
    blank_numbers,
    choose_site_range_count,
    count_site_lines,
    cut_site_lines,
    find_frequent_keys,
    find_site,
    merge_examples,
)

Page = tuple[str | None, str]  # URL and text
Split = tuple[str, list[Page]]  # source and pages


def clean(
    splits: Sequence[Split], rules: SiteLines, parts: int = 1, batch: int = 100
) -> tuple[list[list[str]], list[SiteExample], dict[str, int]]:
    """Return the remaining texts of each split, the examples, and the counts of the last phase."""
    left = []
    examples: list[SiteExample] = []
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def batches(pages: list[Page]) -> Any:
            for start in range(0, len(pages), batch):
                some = pages[start : start + batch]
                yield [text for _, text in some], [url for url, _ in some]

        keys = [str(place / f"keys-{nth}") for nth in range(len(splits))]
        for (source, pages), path in zip(splits, keys, strict=True):
            count_site_lines(batches(pages), rules, path, source)
        frequent = [str(place / f"frequent-{part}") for part in range(parts)]
        for part, path in enumerate(frequent):
            find_frequent_keys(keys, part, parts, rules, path)
        for nth, (source, pages) in enumerate(splits):
            spans, marks = str(place / "spans"), str(place / "marks")
            found, some = cut_site_lines(batches(pages), frequent, nth, rules, spans, marks, source)
            counts.update(found)
            examples = merge_examples([*examples, *some])
            cuts = load_spans(spans, SITE_LINES)
            left.append(
                [remove_spans(text, cuts.get(i, []))[0] for i, (_, text) in enumerate(pages)]
            )
    return left, examples, dict(counts)


def clean_plainly(splits: Sequence[Split], rules: SiteLines) -> list[list[list[str]]]:
    """Return the lines that stay on each page, by counting over all pages at once."""

    def read(text: str, edge: str) -> list[tuple[int, str]]:
        lines = [(i, line.lower()) for i, line in enumerate(text.split("\n")) if line.strip()]
        if rules.where == "anywhere":
            return [] if edge == "head" else lines
        return lines[: rules.edge_lines] if edge == "head" else lines[-rules.edge_lines :]

    pages: Counter[tuple[str, str]] = Counter()
    having: Counter[tuple[str, str, str, str]] = Counter()
    for source, some in splits:
        for url, text in some:
            site = find_site(url, rules.site)
            pages[source, site] += 1
            for edge in ("head", "foot"):
                having.update({(source, site, edge, line) for _, line in read(text, edge)})
    left = []
    for source, some in splits:
        stays = []
        for url, text in some:
            site = find_site(url, rules.site)
            removed = set[int]()
            for edge in ("head", "foot") if site else ():
                lines = read(text, edge)
                counts = [having[source, site, edge, line] for _, line in lines]
                shares = [
                    count / pages[source, site]
                    if count >= rules.min_pages and len(line) >= rules.min_characters
                    else 0.0
                    for count, (_, line) in zip(counts, lines, strict=True)
                ]
                chosen = page_edges.choose_removed_lines(
                    [page_edges.PageLine(0, line) for _, line in lines],
                    shares,
                    rules.min_share,
                    "page" if rules.where == "anywhere" else "head" if edge == "head" else "foot",
                )
                removed |= {lines[nth][0] for nth in chosen}
            stays.append(
                [
                    line
                    for i, line in enumerate(text.split("\n"))
                    if line.strip() and i not in removed
                ]
            )
        left.append(stays)
    return left


URLS = ("http://a.example/1", "https://www.a.example/2", "http://b.example", None, "file.html")


@st.composite
def corpora(draw: st.DrawFn) -> list[Split]:
    line = st.sampled_from(["menu", "Menu", "no", "imprint", "own", "", " "])
    text = st.lists(line, max_size=6).map("\n".join)
    page = st.tuples(st.sampled_from(URLS), text)
    source = st.sampled_from(["web", "code"])
    return draw(st.lists(st.tuples(source, st.lists(page, max_size=6)), max_size=3))


@settings(max_examples=150)
@given(
    corpora(),
    st.sampled_from(["edges", "anywhere"]),
    st.integers(2, 3),
    st.sampled_from([0.2, 0.5, 1.0]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_remaining_lines_equal_a_plain_count(
    splits, where, min_pages, min_share, edge_lines, parts, batch
):
    rules = SiteLines(where=where, min_pages=min_pages, min_share=min_share, edge_lines=edge_lines)
    left, _, counts = clean(splits, rules, parts, batch)
    lines = [[[line for line in t.split("\n") if line.strip()] for t in some] for some in left]
    assert lines == clean_plainly(splits, rules)
    before = sum(len(text) for _, pages in splits for _, text in pages)
    assert counts.get("characters", 0) == before
    assert counts.get("characters_cut", 0) == before - sum(len(t) for some in left for t in some)


@given(corpora(), st.integers(1, 3), st.integers(1, 3))
def test_splits_and_batches_change_nothing(splits, batch, parts):
    rules = SiteLines(min_pages=2)
    left, examples, _ = clean(splits, rules)
    one_by_one = [(source, [page]) for source, pages in splits for page in pages]
    apart, examples_apart, _ = clean(one_by_one, rules, parts, batch)
    assert [text for some in apart for text in some] == [text for some in left for text in some]
    assert examples_apart == examples


def make_site(site: str, pages: int, footer: str, without: int = 0) -> list[Page]:
    """Return pages of a site with a footer, which the first `without` pages lack."""
    words = ["".join(chr(97 + int(digit)) for digit in str(100 + nth)) for nth in range(pages)]
    return [
        (
            f"https://{site}/{nth}",
            f"About {word}\nThe text on {word}." + ("" if nth < without else f"\n{footer}"),
        )
        for nth, word in enumerate(words)
    ]


FOOTER = "Corrections to the editor"


def count_footers(texts: Sequence[str]) -> int:
    return sum(FOOTER in text for text in texts)


def test_the_share_is_of_the_pages_of_the_site():
    rules = SiteLines(min_share=0.5)
    few = make_site("few.example", 20, FOOTER, without=11)
    many = make_site("many.example", 20, FOOTER, without=10)
    (left,), examples, _ = clean([("web", [*few, *many])], rules)
    assert count_footers(left[:20]) == 9
    assert count_footers(left[20:]) == 0
    assert [(e.site, e.site_pages, e.line, e.line_pages, e.removed_pages) for e in examples] == [
        ("many.example", 20, FOOTER, 10, 10)
    ]


def test_a_line_needs_enough_pages():
    for pages, left_over in ((4, 4), (5, 0)):
        (left,), _, _ = clean([("web", make_site("a.example", pages, FOOTER))], SiteLines())
        assert count_footers(left) == left_over


def test_sources_are_counted_apart_and_may_be_named():
    splits = [
        ("web", make_site("a.example", 6, FOOTER)),
        ("code", make_site("a.example", 4, FOOTER)),
    ]
    left, _, _ = clean(splits, SiteLines())
    assert [count_footers(texts) for texts in left] == [0, 4]
    left, _, _ = clean(splits, SiteLines(sources=("code",)))
    assert [count_footers(texts) for texts in left] == [6, 4]


def test_hosts_of_a_domain_are_counted_together_if_asked():
    pages = [*make_site("a.news.co.uk", 3, FOOTER), *make_site("b.news.co.uk", 3, FOOTER)]
    assert count_footers(clean([("web", pages)], SiteLines())[0][0]) == 6
    assert count_footers(clean([("web", pages)], SiteLines(site="domain"))[0][0]) == 0


def test_marked_lines_stay():
    pages = make_site("a.example", 6, FOOTER)
    left, examples, counts = clean([("web", pages)], SiteLines(remove=False))
    assert left == [[text for _, text in pages]]
    assert counts["characters_cut"] == counts["documents_cut"] == 0
    assert counts["documents_marked"] == counts["lines_marked"] == 6
    assert counts["characters_marked"] == 6 * len(f"\n{FOOTER}")
    assert examples[0].removed_pages == 6


def test_titles_that_count_stay_and_dates_at_the_foot_go():
    pages: list[Page] = [
        (
            f"http://a.example/{nth}",
            f"Lesson {nth}\nOn {chr(97 + nth) * 5}.\nLast generated {nth + 8} May 2024",
        )
        for nth in range(8)
    ]
    (left,), _, _ = clean([("web", pages)], SiteLines())
    assert left == [f"Lesson {nth}\nOn {chr(97 + nth) * 5}." for nth in range(8)]
    (left,), _, _ = clean([("web", pages)], SiteLines(blank_numbers=False))
    assert left == [text for _, text in pages]


@pytest.mark.parametrize(
    "same",
    [
        ("Updated 3 May 2024, 12:30 pm", "updated 2024-06-12", "Updated Monday, June 3rd 2019"),
        ("1 2 3 Next", "1 2 3 4 5 Next"),
        ("Stand: 3. März 2024", "Stand: 12. Dezember 2023"),
    ],
)
def test_dates_and_numbers_are_one_number(same: tuple[str, ...]):
    assert len({blank_numbers(line).lower() for line in same}) == 1


def test_words_that_are_also_months_stay_without_a_number():
    assert blank_numbers("You may copy it") == "You may copy it"


@pytest.mark.parametrize(
    ("url", "host", "domain"),
    [
        ("https://www.News.co.uk/a", "news.co.uk", "news.co.uk"),
        ("http://user@a.b.example.com:80/x?y#z", "a.b.example.com", "example.com"),
        ("http://127.0.0.1/x", "127.0.0.1", "127.0.0.1"),
        ("http://localhost/", "localhost", "localhost"),
        ("http://a.co.uk./", "a.co.uk", "a.co.uk"),
        ("no url", "", ""),
        ("", "", ""),
        (None, "", ""),
    ],
)
def test_the_site_of_a_url(url: str | None, host: str, domain: str):
    assert find_site(url, "host") == host
    assert find_site(url, "domain") == domain


def test_examples_are_of_the_largest_sites_in_any_grouping():
    examples = [
        SiteExample("web", f"{site}.example", 100 - site, line, f"line {site} {line}", line, 1)
        for site in range(30)
        for line in range(9)
    ]
    whole = merge_examples(examples * 2)
    halves = merge_examples([*merge_examples(examples[::-1]), *merge_examples(examples)])
    assert whole == halves
    assert len(whole) == 20 * 5
    assert whole[0] == SiteExample("web", "0.example", 100, 8, "line 0 8", 8, 2)


def test_a_range_of_keys_takes_the_memory_it_is_planned_with(tmp_path: Path):
    paths = []
    for nth in range(4):
        records = np.empty(100_000, COUNT)
        keys = np.random.default_rng(nth).integers(1, 2**64, len(records), np.uint64)
        records["key"] = np.sort(keys)
        records["count"] = 1
        paths.append(str(tmp_path / str(nth)))
        record_files.save_by_key(paths[-1], records)
    tracemalloc.start()
    find_frequent_keys(paths, 0, 1, SiteLines(), str(tmp_path / "found"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert choose_site_range_count(400_000, round(1.05 * peak)) == 1
    assert choose_site_range_count(400_000, round(0.95 * peak)) == 2


def test_the_ranges_are_at_most_the_slices_of_a_file():
    assert choose_site_range_count(0, 2**30) == 1
    assert choose_site_range_count(10**12, 2**30) == record_files.SLICES


def test_a_share_that_is_just_reached_counts():
    for share in (0.1, 0.2, 0.3, 0.7):
        pages = make_site("a.example", 50, FOOTER, without=50 - round(50 * share))
        (left,), _, _ = clean([("web", pages)], SiteLines(min_share=share))
        assert count_footers(left) == 0
