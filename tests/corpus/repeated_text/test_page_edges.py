"""Which lines near the edges of a page may be removed."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.removed_spans import remove_spans
from trainrig.corpus.repeated_text.page_edges import (
    Edge,
    PageLine,
    build_removed_spans,
    choose_removed_lines,
    list_foot_lines,
    list_head_lines,
)


def remove_lines(text: str, shares: dict[str, float], edge: Edge, min_share: float = 0.2) -> str:
    """Return `text` without the lines that are removed; `shares` are keyed by line."""
    lines = list_head_lines(text, len(text) + 1)
    removed = choose_removed_lines(
        lines, [shares.get(line.text, 0.0) for line in lines], min_share, edge
    )
    return remove_spans(
        text, build_removed_spans(text, [lines[nth].start for nth in removed], "s")
    )[0]


@given(st.text("ab \n", max_size=30), st.integers(1, 5))
def test_edge_lines_are_the_first_and_last_that_are_not_blank(text: str, most: int):
    start = 0
    lines = []
    for line in text.split("\n"):
        if line.strip():
            lines.append(PageLine(start, line))
        start += len(line) + 1
    assert list_head_lines(text, most) == lines[:most]
    assert list_foot_lines(text, most) == lines[-most:]


def choose_plainly(
    lines: Sequence[str], shares: Sequence[Fraction], min_share: Fraction, edge: Edge
) -> list[int]:
    """Return the indexes of removed lines, for lines of words, by the rules as they are stated."""
    order = list(range(len(lines)))
    if edge == "foot":
        order.reverse()
    removed = []
    for place, nth in enumerate(order):
        stay = [other for other in order[:place] if other not in removed]
        needed = min_share * (1 if edge == "page" else 1 + len(stay))
        if needed <= 1 and shares[nth] >= needed:
            removed.append(nth)
    headings = []
    for nth in removed:
        after = nth + 1
        while after in removed and lines[after].endswith("."):
            after += 1
        leads = after not in removed and (after < len(lines) or edge == "head")
        menu = edge != "foot" and all(before in removed for before in range(nth))
        if leads and not menu and not lines[nth].endswith("."):
            headings.append(nth)
    return sorted(set(removed) - set(headings))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(["A menu", "A sentence."]), st.integers(0, 10)), max_size=8),
    st.integers(1, 10),
    st.sampled_from(["head", "foot", "page"]),
)
def test_removed_lines_are_those_of_the_stated_rules(
    lines: list[tuple[str, int]], tenths: int, edge: Edge
):
    texts = [text for text, _ in lines]
    found = choose_removed_lines(
        [PageLine(nth, text) for nth, text in enumerate(texts)],
        [share / 10 for _, share in lines],
        tenths / 10,
        edge,
    )
    shares = [Fraction(share, 10) for _, share in lines]
    assert found == choose_plainly(texts, shares, Fraction(tenths, 10), edge)


ARTICLE = "The title of it\nAll of the article\nand more."


@pytest.mark.parametrize(
    "footer",
    [
        "Corrections: write to us",
        "Home | About us",
        "© 2024 The Gazette (Northern edition)",
        "Last generated 2024-01-02",
        "Text under CC BY 4.0.",
        "- Imprint",
    ],
)
def test_a_line_on_enough_pages_goes_from_the_foot(footer: str):
    shares = {footer: 0.3}
    assert remove_lines(f"{ARTICLE}\n\n{footer}\n", shares, "foot") == ARTICLE
    assert remove_lines(f"{footer}\n\n{ARTICLE}", shares, "head") == ARTICLE
    assert footer in remove_lines(f"{ARTICLE}\n{footer}", shares, "foot", min_share=0.4)


@pytest.mark.parametrize(
    "line",
    [
        "    return found",
        "}",
        "});",
        ">>> plt.show()",
        "main()",
        "# Notes",
        "type Error = Infallible",
        "std::process::exit",
        "fn next(&mut self) -> Option<T>",
        "array([0, 1]),",
        "```",
    ],
)
def test_code_and_markdown_headings_stay(line: str):
    text = f"{line}\n{ARTICLE}\n{line}"
    for edge in ("head", "foot", "page"):
        assert remove_lines(text, {line: 1.0}, edge) == text


def test_a_heading_stays_with_the_lines_after_it():
    shares = {"See also": 0.9, "More to read:": 0.9}
    text = f"{ARTICLE}\nSee also\nanother page"
    assert remove_lines(text, shares, "foot") == text
    text = f"{ARTICLE}\nMore to read:\nanother page\na third page"
    assert remove_lines(text, shares, "foot") == text


def test_a_sentence_goes_from_above_lines_of_the_page():
    text = f"{ARTICLE}\nWrite to us about mistakes.\nTags: birds"
    shares = {"Write to us about mistakes.": 0.4}
    assert remove_lines(text, shares, "foot") == f"{ARTICLE}\nTags: birds"
    # One other line below it: twice the share is needed.
    assert remove_lines(text, shares, "foot", min_share=0.25) == text


def test_code_fences_protect_what_is_within():
    text = f"```\nhello world\n```\n{ARTICLE}\n```\nhello world\n```"
    for edge in ("head", "foot", "page"):
        assert remove_lines(text, {"hello world": 1.0}, edge) == text


def test_separators_go_with_the_lines_around_them():
    shares = {"Home": 1.0, "About": 1.0}
    assert remove_lines(f"Home\n|\nAbout\n---\n{ARTICLE}", shares, "head") == f"---\n{ARTICLE}"
    assert remove_lines(f"{ARTICLE}\n---\nHome\n|\nAbout\n|", shares, "foot") == f"{ARTICLE}\n---"


@given(st.text("ab \n", max_size=30), st.data())
def test_only_removed_lines_and_blank_lines_are_lost(text: str, data: st.DataObject):
    lines = list_head_lines(text, len(text) + 1)
    chosen = data.draw(st.sets(st.sampled_from(range(len(lines))))) if lines else set()
    spans = build_removed_spans(text, [lines[nth].start for nth in chosen], "s")
    left, _ = remove_spans(text, spans)
    kept = [line.text for nth, line in enumerate(lines) if nth not in chosen]
    assert [line.text for line in list_head_lines(left, len(left) + 1)] == kept
    if not chosen:
        assert left == text
