"""Texts and numbers as a page shows them."""

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.report import number_formats
from trainrig.report.number_formats import format_count


@given(st.text(st.characters()))
def test_any_text_is_safe_in_an_attribute_and_comes_back(text):
    shown = number_formats.escape_invisible(text)
    written = html.escape(shown)
    element = ElementTree.fromstring(f'<a b="{written}">{written}</a>')
    assert (element.text or "") == shown
    assert not number_formats._INVISIBLE.search(element.attrib["b"])


def test_letters_of_every_script_stay():
    text = "שלום עולם, 你好 नमस्ते 👩‍🚀\n\ttab"
    assert number_formats.escape_invisible(text) == text


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
    assert number_formats.format_duration(seconds).replace("\u00a0", " ") == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (3, "3"),
        (9_999, "9,999"),
        (52_113.4, "52.1k"),
        (999_999, "1M"),
        (6_912_345, "6.91M"),
        (1.5e9, "1.5B"),
        (-2e13, "-20T"),
        (0.12345, "0.1235"),
        (427_207_872, "427M"),
        (719_530_754_048, "720B"),
        (2.07e21, "2.07e+21"),
    ],
)
def test_large_numbers_are_shortened_to_three_digits(value, words):
    assert number_formats.format_short(value).replace("\u00a0", " ") == words


@pytest.mark.parametrize(
    ("value", "words"), [(812, "812 bytes"), (15_177_323, "15.2 MB"), (999_999_999, "1 GB")]
)
def test_bytes_have_units_of_their_own(value, words):
    assert number_formats.format_bytes(value).replace("\u00a0", " ") == words


def test_a_share_of_nothing_is_a_dash():
    assert number_formats.format_percent(1, 3) == "33.3\u00a0%"
    assert number_formats.format_percent(0, 0) == "–"


def test_one_entry_is_written_in_the_singular():
    assert [format_count(n, "entry") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert format_count(1_000, "document") == "1,000 documents"


def test_no_page_writes_a_count_before_a_plural():
    """`1 steps`: a template writes the noun by `plural`."""
    package = Path(number_formats.__file__).parents[1]
    for template in package.rglob("*.html.j2"):
        found = re.findall(r"\|(?:number|length) \}\} ([a-z]+s)\b", template.read_text())
        assert set(found) <= {"times"}, template
