from html.parser import HTMLParser

import pytest
from resiliparse.extract.html2text import extract_plain_text

from trainrig.quickstart.site.article import (
    Article,
    ArticleTable,
    Bullets,
    Code,
    Heading,
    Paragraph,
)
from trainrig.quickstart.site.page_frame import Frame, Link, render

ARTICLE = Article(
    "a/b.html",
    "On <tags> & titles",
    "a",
    (
        Paragraph("The opening paragraph has enough words to be taken for the content. " * 3),
        Heading(2, "A part"),
        Bullets(("the first point", "the second point")),
        Code("total(values)"),
        ArticleTable(("Parameter", "Type"), (("values", "array"), ("axis", "int"))),
        Paragraph("And the closing paragraph tells what else there is to be known. " * 3),
    ),
)
MENU = tuple(Link(f"Neighbour {number}", f"n{number}.html") for number in range(8))
LAYOUTS = range(5)
EMPTY_ELEMENTS = {"meta", "link", "input", "br", "hr", "img"}


def make_frame(layout: int) -> Frame:
    return Frame(layout, "Test <site>", MENU)


class Balance(HTMLParser):
    """Parser that fails where an end tag does not match the last open element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_is_closed_in_its_place(layout):
    parser = Balance()
    parser.feed(render(ARTICLE, make_frame(layout)).decode())
    parser.close()
    assert parser.open == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_extractor_finds_the_whole_article_and_little_of_the_frame(layout):
    page = render(ARTICLE, make_frame(layout)).decode()
    text = extract_plain_text(page, main_content=True)
    for part in (
        "<tags> & titles",
        "opening",
        "A part",
        "second point",
        "total(",
        "axis",
        "closing",
    ):
        assert part in text
    assert "Neighbour" in page
    assert "Neighbour" not in text


def test_the_layouts_differ():
    assert len({render(ARTICLE, make_frame(layout)) for layout in LAYOUTS}) == len(LAYOUTS)


def test_a_lone_surrogate_in_a_docstring_does_no_harm():
    page = render(Article("a.html", "T", "s", (Paragraph("half \ud83d a sign"),)), make_frame(0))
    assert b"half ? a sign" in page
