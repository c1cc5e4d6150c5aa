"""The messages that docs/troubleshooting.md quotes are those of the code."""

import re
from pathlib import Path

import pytest
from support.messages import collect_messages

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "trainrig"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
OF_THE_SHELL = "trainrig: command not found"
FIELD = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}|%[-+.\d]*[sdfg]|`")


def list_fixed_parts(text: str) -> list[str]:
    """Return the parts of a message between its fields."""
    return FIELD.split(text)


def is_quote_of(quote: str, message: str) -> bool:
    """Return whether the fixed words of `quote` are those of `message`, in order.

    A `…` of the quote stands for one or more fields, or for words that are left out.
    """
    rest = "\0".join(list_fixed_parts(message))
    for part in filter(None, map(str.strip, quote.split("…"))):
        _, found, rest = rest.partition(part)
        if not found:
            return False
    return True


MESSAGES = [
    message.text
    for path in sorted(PACKAGE.rglob("*.py"))
    if PACKAGE / "quickstart" / "site" not in path.parents
    for message in collect_messages(path)
]


@pytest.mark.parametrize("quote", [quote for quote in QUOTED if quote != OF_THE_SHELL])
def test_a_quoted_message_exists_in_the_code(quote: str) -> None:
    words = re.findall(r"[A-Za-z]{2,}", quote)
    assert len(words) >= 2, "too short to find"
    assert any(is_quote_of(quote, message) for message in MESSAGES)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 40
    assert len(QUOTED) == len(set(QUOTED))


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ("…: no row of … is left", True),
        ("…: no row … is left", True),
        ("…: no line of … is left", False),
        ("is left …: no row of", False),
        ("…: no row of a is left", False),
    ],
)
def test_a_quote_is_compared_in_its_fixed_words(quote: str, found: bool) -> None:
    assert is_quote_of(quote, "{path}: no row of {names[0]} is left; add %d") == found
