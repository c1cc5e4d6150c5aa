"""C4's list of bad words, compared with the regular expression of its authors' code and by hand."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.filters.filters import C4, find_first_broken_rule
from trainrig.corpus.models.scorers import BadWords

ENTRIES = ("darn", "blast it", "f*ck", "a55", "\U0001f595", "b_d", "!ouch!", "it")
pieces = st.sampled_from([*ENTRIES, *" \n.!*_", "ing", "Darn", "BLAST", "ss", "\U0001f3fd"])


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> BadWords:
    folder = tmp_path_factory.mktemp("lists")
    (folder / "en.txt").write_text("# a comment\n\n" + "\n".join(ENTRIES))
    (folder / "ja.txt").write_text("馬鹿\n阿呆\n")
    return BadWords(path={"en": str(folder / "en.txt"), "ja": str(folder / "ja.txt")})


@given(st.lists(pieces, max_size=12).map("".join))
def test_entries_match_as_in_the_published_code(words: BadWords, text: str):
    found = sum(
        bool(re.search(rf"(?:\W|^)({re.escape(entry)})(?:\W|$)", text.lower())) for entry in ENTRIES
    )
    assert words.score([text], ["en"]) == [found]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("no bad word", 0),
        ("Darn, that DARN cat", 1),
        ("darning a darned sock", 0),
        ("darn, blast it", 3),  # "it" is a separate entry
        ("blast  it", 1),  # an entry matches only with one space, as written
        ("oh F*CK!", 1),
    ],
)
def test_the_number_by_hand(words: BadWords, text: str, number: int):
    assert words.score([text], ["en"]) == [number]


def test_without_spaces_entries_match_anywhere(words: BadWords):
    assert words.score(["この馬鹿野郎め", "阿"], ["ja", "ja"]).tolist() == [1, 0]


def test_a_language_without_a_list_has_no_count_and_is_not_dropped(words: BadWords):
    scores = words.score(["darn", "darn", "fine"], ["de", "en", "en"])
    assert math.isnan(scores[0])
    rule = C4(min_sentences=0, max_bad_words=0)
    columns = {limit.signal: np.zeros(3) for limit in rule.iterate_limits()} | {"bad_words": scores}
    assert find_first_broken_rule([rule], columns) == [None, "C4.bad_words", None]


def test_the_rule_is_off_by_default():
    on, off = (
        [limit.rule for limit in rules.iterate_limits()] for rules in (C4(max_bad_words=0), C4())
    )
    assert set(on) - set(off) == {"bad_words"}


def test_content_keys_are_the_listed_languages(words: BadWords):
    assert words.read_content_keys().keys() == {"en", "ja"}
