"""Repair of Unicode: its results, and that it skips only lines that ftfy would not change."""

import re

import ftfy
import pytest
from ftfy.badness import BADNESS_RE, is_bad
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainrig.corpus.rewrite.characters import RepairUnicode, find_suspect_lines

# All characters of ftfy's own pattern, including the ends of its ranges, and some plain ones.
SIGNS = sorted({*re.sub(r"[\[\]{}|\\]", "", BADNESS_RE.pattern), *"aZ0. \n\u0301\ud83d\ude00漢é€œ"})
texts = st.one_of(
    st.text(st.sampled_from(SIGNS), max_size=12),
    st.text(st.characters(max_codepoint=0x2FFF), max_size=12),
    st.text(st.characters()),
)
plain = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)


def repair_by_ftfy(text: str) -> str:
    """Return ftfy's repair of all of `text`, with only the options that repair."""
    taste = ("unescape_html", "remove_terminal_escapes", "fix_latin_ligatures", "uncurl_quotes")
    taste += ("fix_character_width", "fix_line_breaks", "remove_control_chars")
    return ftfy.fix_text(text, ftfy.TextFixerConfig(**dict.fromkeys(taste, False)))


@given(texts)
@example("\n\x85")
@example("Œ.")
def test_no_line_is_spared_that_ftfy_would_repair(text: str):
    repaired, counts = RepairUnicode().apply(text, "en")
    lines = [(line, repair_by_ftfy(line)) for line in text.split("\n")]
    assert repaired == "\n".join(fixed for _, fixed in lines)
    assert sum(counts.values()) == sum(line != fixed for line, fixed in lines)


@pytest.mark.slow
@given(st.from_regex(BADNESS_RE), plain)
@example("œ.", "")
@settings(max_examples=1000)
def test_all_that_ftfy_finds_odd_is_suspected(odd: str, before: str):
    lines = f"{before}\n{odd}".split("\n")
    expected = {at for at, line in enumerate(lines) if is_bad(line) and not line.isascii()}
    assert expected <= set(find_suspect_lines("\n".join(lines)))


@given(plain, st.sampled_from(["latin-1", "windows-1252", "macroman", "cp437", "windows-1251"]))
def test_mojibake_is_suspected_wherever_ftfy_repairs_it(text: str, encoding: str):
    mojibake = text.encode().decode(encoding, "replace")
    assert RepairUnicode().apply(mojibake, "en")[0] == "\n".join(
        map(repair_by_ftfy, mojibake.split("\n"))
    )


@given(texts)
def test_repaired_text_stays_unchanged(text: str):
    repaired, _ = RepairUnicode().apply(text, "en")
    assert RepairUnicode().apply(repaired, "en") == (
        repaired,
        dict.fromkeys(RepairUnicode.columns, 0),
    )


@pytest.mark.parametrize(
    ("text", "expected", "lines", "composed"),
    [
        ("dÃ©jÃ\xa0 vu\nschÃ¶n\nschön", "déjà vu\nschön\nschön", 2, 0),
        ("Iâ€™m here", "I’m here", 1, 0),
        ("e\u0301te\u0301\nété", "été\nété", 0, 1),
        ("\ud83d\ude00", "😀", 1, 0),
        ("“Über” – £5, ‘naïve’ ﬁ ＡＢ &amp; \x1b[0m\x07", None, 0, 0),
    ],
)
def test_repairs_by_hand(text: str, expected: str | None, lines: int, composed: int):
    assert RepairUnicode().apply(text, "en") == (
        text if expected is None else expected,
        {"unicode_repaired_lines": lines, "unicode_composed_lines": composed},
    )


@pytest.mark.slow
@pytest.mark.data
def test_few_lines_of_real_pages_are_shown_to_ftfy(real_texts: list[str]):
    lines = sum(text.count("\n") + 1 for text in real_texts)
    assert sum(len(find_suspect_lines(text)) for text in real_texts) < lines / 20
    for text in real_texts:
        assert RepairUnicode().apply(text, "en")[0] == repair_by_ftfy(text)
