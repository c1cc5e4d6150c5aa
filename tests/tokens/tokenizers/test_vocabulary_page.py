import dataclasses
import re

import pytest

from trainrig.report.plot_drawing import draw
from trainrig.tokens.tokenizers.vocabulary_measures import (
    Amount,
    EntryGroup,
    MeasuredVocabulary,
    Rival,
    TokenizerReport,
)
from trainrig.tokens.tokenizers.vocabulary_page import draw_lengths, render_vocabulary_page

HOSTILE = "<script>alert(1)</script>\u202e"

VOCABULARY = MeasuredVocabulary(
    entries=1_000,
    fingerprint="5eed" * 16,
    engine="tokenizers",
    why_not_fast="it changes texts first (NFC)",
    special={"<|end_of_text|>": 0},
    total=Amount(documents=30, bytes=9_000, characters=8_000, words=1_500, tokens=3_000),
    sources={
        HOSTILE: Amount(documents=10, bytes=6_000, characters=5_000, words=1_000, tokens=1_500),
        "code": Amount(documents=20, bytes=3_000, characters=3_000, words=500, tokens=1_500),
    },
    languages={
        "en": Amount(documents=30, bytes=9_000, characters=8_000, words=1_500, tokens=3_000)
    },
    lengths=[
        EntryGroup("1", 256, 100),
        EntryGroup("2", 700, 650),
        EntryGroup("17", 30, 5),
        EntryGroup("40", 13, 1),
    ],
    scripts=[EntryGroup("Latin", 900, 700), EntryGroup("part of a character", 99, 56)],
    unused=243,
    unused_examples=["␣<b>", "zz"],
    never_seen=12,
    never_seen_examples=[HOSTILE],
    frequencies=[(1, 300), (10, 30), (700, 1)],
    commonest=[("␣the", 300), ("&", 30)],
    longest=["a" * 40],
    not_given_back=[],
    cut=["A", " text\n", "<b>"],
    cut_id="d1",
)
REPORT = TokenizerReport(
    kind="Unigram",
    held_out=True,
    sampled_documents=500,
    sampled_bytes_of={HOSTILE: 100_000, "code": 50_000},
    channels=64,
    tied=False,
    vocabulary=VOCABULARY,
    rivals=(
        Rival("this one", 1_000, VOCABULARY.total, 128_000),
        Rival("its first 500 entries", 500, Amount(30, 9_000, 8_000, 1_500, 4_500), 64_000),
    ),
)


def with_vocabulary(**changes: object) -> TokenizerReport:
    return dataclasses.replace(REPORT, vocabulary=dataclasses.replace(VOCABULARY, **changes))


def text_of(report: TokenizerReport) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", render_vocabulary_page(report)))


@pytest.mark.slow
def test_the_same_report_gives_the_same_page():
    assert render_vocabulary_page(REPORT) == render_vocabulary_page(dataclasses.replace(REPORT))


def test_the_page_shows_the_measurements():
    text = text_of(REPORT)
    for expected in (
        "3.00 bytes per token on 30 held-out documents; every document decodes to the same text.",
        "Tokens per word 2.00 tokens",
        "150\u00a0kB 500 documents of 2 sources",
        "12 entries 1.2\u00a0% of the entries are in no token of the training text",
        "1,000 entries × 64 channels × 2, for the head",
        "This one needs the fewest tokens: 3,000",
        "24.3\u00a0% of the entries are not used in the measured text",
        "90.0\u00a0% of the entries are Latin",
        "The most common entry is 10.0\u00a0% of all tokens",
        "A│ text │&lt;b&gt;",
        "it changes texts first (NFC)",
        "5eed" * 16,
    ):
        assert expected.replace("\u00a0", " ") in text.replace("\u00a0", " "), expected


def test_nothing_that_strangers_wrote_becomes_markup():
    page = render_vocabulary_page(REPORT)
    assert "<script" not in page and "\u202e" not in page and "<b>&" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;⟨U+202E⟩" in page


@pytest.mark.parametrize(
    ("report", "state", "said"),
    [
        (REPORT, "done", "every document decodes"),
        (dataclasses.replace(REPORT, held_out=False), "warning", "No document was held out"),
        (with_vocabulary(not_given_back=["d7"]), "failed", "1 does not decode"),
        (with_vocabulary(not_given_back=["d7", "d8"]), "failed", "2 do not decode"),
    ],
)
def test_the_verdict_matches_the_findings(report, state, said):
    page = render_vocabulary_page(report)
    assert f'<div class="verdict {state}">' in page and said in page


def test_lengths_beyond_the_chart_share_a_bar_but_are_in_the_table():
    chart = draw_lengths(VOCABULARY)
    svg = draw(chart["plot"])
    assert "&gt;16" in svg and ">40<" not in svg
    assert [row[0] for row in chart["rows"]] == ["1", "2", "17", "40"]


def test_a_chart_of_many_sources_draws_the_largest_and_tables_all():
    amount = Amount(documents=1, bytes=100, characters=100, words=20, tokens=30)
    many = {f"source {n:02d}": amount for n in range(15)}
    page = render_vocabulary_page(with_vocabulary(sources=many))
    drawn, shown = page.split("Bars of bytes per token by source.", 1)[1].split("</svg>", 1)
    assert "source 11" in drawn and "source 12" not in drawn
    assert "3 sources more are not shown" in shown
    assert shown.split("</table>", 1)[0].count("<tr>") == 16


def test_a_text_without_tokens_still_has_a_page():
    nothing = with_vocabulary(
        total=Amount(1), sources={"web": Amount(1)}, languages={"": Amount(1)}, frequencies=[],
        commonest=[], cut=[],
    )  # fmt: skip
    assert "The measured text has no tokens" in render_vocabulary_page(nothing)
