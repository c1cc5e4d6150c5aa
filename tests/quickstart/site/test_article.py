import html
import inspect
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.quickstart.site.article import (
    Article,
    ArticleTable,
    Bullets,
    Code,
    Heading,
    Paragraph,
    build_main_text,
    read_docstring,
    render_body,
    strip_marks,
)

NUMPY_STYLE = """Sum of what is given.

    Wraps over
    two lines.

    Parameters
    ----------
    values : array
        What to add.
    axis : int
        Along which to add.

    >>> total([1, 2])
    3
    """


def test_a_docstring_is_read_into_the_blocks_that_a_manual_would_show():
    assert read_docstring(inspect.cleandoc(NUMPY_STYLE)) == (
        Paragraph("Sum of what is given."),
        Paragraph("Wraps over two lines."),
        Heading(4, "Parameters"),
        Bullets(("values : array: What to add.", "axis : int: Along which to add.")),
        Code(">>> total([1, 2])\n3"),
    )


@pytest.mark.parametrize(
    ("docstring", "blocks"),
    [
        (
            "Args:\n    x: A number.\n      Or two.",
            (Heading(4, "Args"), Bullets(("x: A number. Or two.",))),
        ),
        (":param x: a number\n:returns: it", (Bullets(("x: a number", "returns: it")),)),
        ("- one\n- two\n  more", (Bullets(("one", "two more")),)),
        ("====\nName\n====\nText.", (Heading(4, "Name"), Paragraph("Text."))),
        ("It has:\n  - one\n  - two", (Paragraph("It has:"), Bullets(("one", "two")))),
        (".. note::\n   Read this.", (Paragraph("Read this."),)),
        ("", ()),
        ("-----", ()),
    ],
)
def test_each_form_of_docstring_is_understood(docstring, blocks):
    assert read_docstring(docstring) == blocks


@pytest.mark.parametrize(
    ("marked", "unmarked"),
    [
        (":func:`~os.walk` and :py:class:`Path`", "os.walk and Path"),
        ("``x`` or **y** or `z`_", "x or y or z"),
        ("10**2 and 10**-2", "10**2 and 10**-2"),
        ("Use it so::", "Use it so:"),
    ],
)
def test_marks_are_taken_away_and_sums_are_not(marked, unmarked):
    assert strip_marks(marked) == unmarked


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\n \t-=*:>`")))
def test_any_docstring_can_be_read_and_shown(docstring):
    render_body(Article("a.html", "A", "s", read_docstring(docstring)))


ALLOWED = ("p", "h2", "pre", "code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td")


@given(st.text(min_size=1))
def test_all_text_is_escaped(text):
    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag in ALLOWED

    blocks = (
        Paragraph(text),
        Heading(2, text),
        Code(text),
        Bullets((text,)),
        ArticleTable((text,), ((text,),)),
    )
    parser = Tags()
    parser.feed(render_body(Article("a.html", "A", "s", blocks)))
    assert render_body(Article("a.html", "A", "s", blocks)).count(html.escape(text)) >= 6


def test_the_main_text_is_what_the_blocks_say():
    blocks = (Paragraph("One."), Code("a\nb"), Bullets(("x", "y")), ArticleTable(("h",), (("c",),)))
    lines = ["T", "One.", "a", "b", "x", "y", "h", "c"]
    assert build_main_text(Article("a.html", "T", "s", blocks)).splitlines() == lines
