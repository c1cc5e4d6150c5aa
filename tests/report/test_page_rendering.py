"""The page toolkit: untrusted text stays text, and every page keeps its structure."""

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from jinja2 import ChoiceLoader, DictLoader, UndefinedError

from trainrig.report import page_rendering, plots
from trainrig.report.page_rendering import DARK, LIGHT, build_style, render_page

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


KIT = """\
{% extends "report/page.html.j2" %}
{% block title %}{{ text }}{% endblock %}
{% block verdict %}{{ text }}{% endblock %}
{% block figures %}
{% for _ in range(figures) %}{{ figure(text, text, text, text) }}{% endfor %}
{% endblock %}
{% block strip %}
<ol class="strip">
{{ step("one", text, text, 3.0) }}{{ step("missing", text, text, 70.0, linked=false) }}
</ol>
{% endblock %}
{% block sections %}
<section id="one"><h2>{{ text }}</h2>
<figure>
<h3>{{ text }}</h3>
{{ drawing(chart.plot, text) }}
<figcaption>{{ text }}</figcaption>
{{ numbers(text, chart) }}
</figure>
<details><summary>{{ text }}</summary>
{{ table(text, [text, "loss"], [("a", 1234), ("b", 0.123456), (text, none)]) }}
{% call(row) rows_table(text, [text], [1]) %}{{ td(text) }}{% endcall %}
{{ table(text, ["a", "b"], []) }}
</details>
<div class="group">{{ sample(text, text, text, [(0, 4)]) }}{{ sample(text, text) }}</div>
</section>
<section id="{{ second }}"><h2>{{ text ~ "" }}</h2><p>{{ ("<b>"|e ~ text) }}</p></section>
{% endblock %}
{% block next %}{{ command(text, text) }}{% endblock %}
{% block provenance %}{{ facts(text, {text: text}) }}{% endblock %}
"""


@pytest.fixture(autouse=True)
def kit(monkeypatch):
    """Let `render_page` find a template with every macro of the kit."""
    environment = page_rendering._make_environment()
    loader = ChoiceLoader([DictLoader({"kit.html.j2": KIT}), environment.loader])
    monkeypatch.setattr(environment, "loader", loader)


def page(text: str = "some text", figures: int = 4, second: str = "two", **values: object) -> str:
    """Return a page with every macro, and `text` in every place that takes one."""
    plot = plots.Bars([plots.BarRow(text, (1,), text)], plots.Axis(text))
    chart = {"plot": plot, "columns": (text, "n"), "rows": [(text, 1), (text, 2.5), ("", None)]}
    given = {"text": text, "figures": figures, "second": second, "chart": chart}
    return render_page("trainrig.kit", **given, warnings=[text], **values)


def compute_contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2.2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def cut_drawings(html: str) -> str:
    """Return a page without its drawings, whose markup depends on the length of names."""
    return re.sub("<svg.*?</svg>", "", html, flags=re.DOTALL)


def test_hostile_text_adds_no_element_and_no_attribute():
    hostile, plain = (Outline(cut_drawings(page(text))).shape() for text in (HOSTILE, "some text"))
    assert hostile == plain


def test_hostile_text_is_shown_as_it_is_but_for_what_cannot_be_seen():
    shown = unescape(page(HOSTILE))
    assert "<script>alert(1)</script>\"' onload" in shown
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩ ⟨U+0000⟩⟨U+001B⟩[31m ⟨U+D800⟩" in shown
    assert "\x00" not in shown and "\u202e" not in shown


def test_no_template_writes_text_unescaped():
    package = Path(page_rendering.__file__).parents[1]
    templates = sorted(package.rglob("*.html.j2"))
    assert len(templates) > 15
    for template in templates:
        text = template.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), template
        assert not re.search(r'=(?!")[^"\s>]*{{', re.sub("{%.*?%}", "", text)), template


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError):
        render_page("trainrig.kit", text="x", figures=4, second="two")


def test_the_same_page_gives_the_same_bytes():
    assert page() == page()


def test_the_page_fetches_nothing_and_runs_nothing():
    outline = Outline(page())
    policy = next(a for _, a in outline.elements if a.get("http-equiv"))
    assert policy == {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    }
    assert not {"script", "img", "iframe", "object", "base", "form"} & set(outline.tags())
    links = [a[k] for _, a in outline.elements for k in ("href", "src", "srcset") if k in a]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert "url(" not in build_style()
    assert "@import" not in build_style()


def test_headings_never_skip_a_level_and_there_is_one_title():
    levels = [int(tag[1]) for tag in Outline(page()).tags() if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_the_language_the_encoding_and_the_width_are_declared():
    elements = Outline(page()).elements
    assert page().startswith("<!DOCTYPE html>\n<html")
    assert elements[0] == ("html", {"lang": "en"})
    assert ("meta", {"charset": "utf-8"}) in elements
    assert any(a.get("name") == "viewport" for _, a in elements)


def test_the_parts_come_in_the_order_in_which_a_page_is_read():
    text = page()
    marks = ["<h1", 'class="verdict', 'class="figures"', 'class="strip"', 'id="one"', 'id="two"']
    marks += ['id="next"', 'id="provenance"']
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("state", ["warning", "done", "failed"])
def test_warnings_stand_in_the_verdict_and_its_state_is_a_word(state):
    text = page(state=state) if state != "warning" else page()
    assert f'class="verdict {state}"><p><span class="state">{state}</span>' in text
    assert text.index("<li>some text</li>") < text.index('class="figures"')


def test_a_chart_has_a_label_a_caption_and_its_numbers_folded():
    outline = Outline(cut_drawings(page()))
    assert ("div", {"class": "drawing", "role": "img", "aria-label": "some text"}) in (
        outline.elements
    )
    tags = outline.tags()
    assert tags.index("figcaption") < tags.index("details") < tags.index("table")


def test_a_step_links_to_the_section_of_its_name_if_there_is_one():
    text = page()
    assert '<a href="#one">one</a>' in text
    assert "#missing" not in text


def test_a_table_sets_numbers_to_the_right_and_shows_nothing_as_a_dash():
    text = page()
    assert '<th scope="col">some text</th><th scope="col" class="n">loss</th>' in text
    assert re.findall('<td class="n">([^<]*)', text)[3:6] == ["1,234", "0.1235", "–"]


def test_a_table_without_rows_is_still_a_table():
    assert "<tbody></tbody>" in page()


def test_the_caption_of_a_wide_table_is_outside_of_the_box_that_scrolls():
    assert re.search('<p class="caption">some text</p>\n<div class="scroll" role="region"', page())
    assert "<caption>" not in page()


def test_marks_highlight_spans_of_a_sample():
    assert '<blockquote dir="auto"><mark>some</mark> text</blockquote>' in page()


@pytest.mark.parametrize("count", [3, 7])
def test_a_page_shows_four_to_six_figures(count):
    with pytest.raises(ValueError, match=f"{count} figures"):
        page(figures=count)


def test_two_sections_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name: one, one"):
        page(second="one")


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_series_reach_three_to_one_on_paper_and_text_four_and_a_half(theme):
    assert compute_contrast("#000000", "#ffffff") == pytest.approx(21)
    for series in ("c1", "c2", "c3", "c4"):
        assert compute_contrast(theme[series], theme["paper"]) >= 3
    for text in ("ink", "muted", "c1"):  # c1 is the colour of links
        assert compute_contrast(theme[text], theme["paper"]) >= 4.5
        assert compute_contrast(theme[text], theme["panel"]) >= 4.5


def test_both_themes_define_every_colour_that_the_style_uses():
    used = set(re.findall(r"var\(--([\w-]+)\)", build_style())) - {"edge"}
    assert used <= LIGHT.keys()
    assert LIGHT.keys() == DARK.keys()


def test_print_is_light_whatever_the_screen_is():
    style = build_style()
    printed = style[style.index("@media print") :]
    assert f"--paper:{LIGHT['paper']}" in printed
    assert style.index("prefers-color-scheme:dark") < style.index("@media print")
