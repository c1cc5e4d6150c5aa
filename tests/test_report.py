"""The page toolkit: untrusted text stays text, and every page keeps its structure."""

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import report
from trainrig.report import (
    Chart,
    Details,
    KeyFigure,
    PageCommand,
    ReportPage,
    ReportTable,
    SampleGroup,
    Section,
    Step,
    Text,
    TextSample,
    Verdict,
)

HOSTILE = (
    '</td></figcaption></style><script>alert(1)</script>"\' onload=alert(2) x="<img src=x'
    " onerror=alert(3)> \u202egnp.exe\u2066 \x00\x1b[31m \ud800 <!-- ]]> &lt;b&gt;"
)
VOID = {"meta", "link", "br", "img"}


class Outline(HTMLParser):
    """Parser of the elements of a page in order, which fails on misplaced end tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def tags(self):
        return [tag for tag, _ in self.elements]

    def shape(self):
        return [(tag, tuple(sorted(attributes))) for tag, attributes in self.elements]


def page(text: str = "some text", **changes) -> ReportPage:
    """Return a page with every kind of block, and `text` in every place that takes one."""
    table = ReportTable(text, (text, "n"), ((text, 1), (text, 2.5), ("", None)))
    chart = Chart(text, "<svg></svg>", text, text, table)
    samples = SampleGroup((TextSample(text, text, text), TextSample(text, text)))
    blocks = (Text(text), chart, Details(text, (table, samples)))
    parts = {
        "title": text,
        "verdict": Verdict(text, "warning", (text,)),
        "figures": (KeyFigure(text, text, text, text),) * 4,
        "sections": (Section("one", text, blocks), Section("two", text, ())),
        "commands": (PageCommand(text, text),),
        "provenance": {text: {text: text}},
        "steps": (Step("one", text, text, 3.0), Step("missing", text, text, 70.0)),
    }
    return ReportPage(**(parts | changes))


def compute_contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2.2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_hostile_text_adds_no_element_and_no_attribute():
    assert Outline(page(HOSTILE).render_html()).shape() == Outline(page().render_html()).shape()


def test_hostile_text_is_shown_as_it_is_but_for_what_cannot_be_seen():
    shown = unescape(page(HOSTILE).render_html())
    assert "<script>alert(1)</script>\"' onload" in shown
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩ ⟨U+0000⟩⟨U+001B⟩[31m ⟨U+D800⟩" in shown


@given(st.text(st.characters()))
def test_any_text_is_safe_in_an_attribute_and_comes_back(text):
    element = ElementTree.fromstring(f'<a b="{report.escape(text)}">{report.escape(text)}</a>')
    assert (element.text or "") == report.escape_invisible(text)
    assert not report._INVISIBLE.search(element.attrib["b"])


def test_letters_of_every_script_stay():
    text = "שלום עולם, 你好 नमस्ते 👩‍🚀\n\ttab"
    assert report.escape_invisible(text) == text


def test_the_same_page_gives_the_same_bytes():
    assert page().render_html() == page().render_html()


def test_the_page_fetches_nothing_and_runs_nothing():
    outline = Outline(page().render_html())
    policy = next(a for _, a in outline.elements if a.get("http-equiv"))
    assert policy == {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    }
    assert not {"script", "img", "iframe", "object", "base", "form"} & set(outline.tags())
    links = [a[k] for _, a in outline.elements for k in ("href", "src", "srcset") if k in a]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert "url(" not in report._build_style()
    assert "@import" not in report._build_style()


def test_headings_never_skip_a_level_and_there_is_one_title():
    levels = [
        int(tag[1]) for tag in Outline(page().render_html()).tags() if re.fullmatch("h[1-6]", tag)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_the_language_the_encoding_and_the_width_are_declared():
    elements = Outline(page().render_html()).elements
    assert elements[0] == ("html", {"lang": "en"})
    assert ("meta", {"charset": "utf-8"}) in elements
    assert any(a.get("name") == "viewport" for _, a in elements)


def test_the_parts_come_in_the_order_in_which_a_page_is_read():
    text = page().render_html()
    marks = ["<h1", 'class="verdict', 'class="figures"', 'class="strip"', 'id="one"', 'id="two"']
    marks += ['id="next"', 'id="provenance"']
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_warnings_stand_in_the_verdict_and_its_state_is_a_word():
    verdict = Verdict("Stopped.", "failed", ("no space left",)).render_html()
    assert ">failed</span> Stopped.</p><ul><li>no space left</li></ul></div>" in verdict


def test_a_chart_has_a_label_a_caption_and_its_numbers_folded():
    chart = page().sections[0].blocks[1]
    outline = Outline(chart.render_html())
    assert ("div", {"class": "drawing", "role": "img", "aria-label": "some text"}) in (
        outline.elements
    )
    tags = outline.tags()
    assert tags.index("figcaption") < tags.index("details") < tags.index("table")


def test_a_step_links_to_the_section_of_its_name_if_there_is_one():
    text = page().render_html()
    assert '<a href="#one">one</a>' in text
    assert "#missing" not in text


def test_a_table_sets_numbers_to_the_right_and_shows_nothing_as_a_dash():
    table = ReportTable(
        "c", ("name", "loss"), (("a", 1234), ("b", 0.123456), ("c", None))
    ).render_html()
    assert '<th scope="col">name</th><th scope="col" class=n>loss</th>' in table
    assert re.findall("<td class=n>([^<]*)", table) == ["1,234", "0.1235", "–"]


def test_a_table_without_rows_is_still_a_table():
    assert "<tbody></tbody>" in ReportTable("none", ("a", "b"), ()).render_html()


@pytest.mark.parametrize("count", [3, 7])
def test_a_page_shows_four_to_six_figures(count):
    with pytest.raises(ValueError, match=f"{count} figures"):
        page(figures=(KeyFigure("a", "1", "b", "c"),) * count)


def test_two_sections_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name: a, a"):
        page(sections=(Section("a", "A", ()), Section("a", "B", ())))


@pytest.mark.parametrize("theme", [report.LIGHT, report.DARK], ids=["light", "dark"])
def test_series_reach_three_to_one_on_paper_and_text_four_and_a_half(theme):
    assert compute_contrast("#000000", "#ffffff") == pytest.approx(21)
    for series in ("c1", "c2", "c3", "c4"):
        assert compute_contrast(theme[series], theme["paper"]) >= 3
    for text in ("ink", "muted", "c1"):  # c1 is the colour of links
        assert compute_contrast(theme[text], theme["paper"]) >= 4.5
        assert compute_contrast(theme[text], theme["panel"]) >= 4.5


def test_both_themes_define_every_colour_that_the_style_uses():
    used = set(re.findall(r"var\(--([\w-]+)\)", report._build_style())) - {"edge"}
    assert used <= report.LIGHT.keys()
    assert report.LIGHT.keys() == report.DARK.keys()


def test_print_is_light_whatever_the_screen_is():
    style = report._build_style()
    printed = style[style.index("@media print") :]
    assert f"--paper:{report.LIGHT['paper']}" in printed
    assert style.index("prefers-color-scheme:dark") < style.index("@media print")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (250, "4 min 10 s"),
        (3_599.7, "1 h 0 min"),
        (7_500, "2 h 5 min"),
    ],
)
def test_durations_read_as_a_person_says_them(seconds, words):
    assert report.format_duration(seconds).replace("\u00a0", " ") == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (3, "3"),
        (9_999, "9,999"),
        (52_113.4, "52.1 k"),
        (999_999, "1 M"),
        (6_912_345, "6.91 M"),
        (1.5e9, "1.5 G"),
        (-2e13, "-20 T"),
        (0.12345, "0.1235"),
    ],
)
def test_large_numbers_are_shortened_to_three_digits(value, words):
    assert report.format_short(value).replace("\u00a0", " ") == words


def test_a_share_of_nothing_is_a_dash():
    assert report.format_percent(1, 3) == "33.3\u00a0%"
    assert report.format_percent(0, 0) == "–"
