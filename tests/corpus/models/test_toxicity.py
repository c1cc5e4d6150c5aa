import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.models.scorers import WordList
from trainrig.errors import DataError

LIST = "# a comment\ndarn\n\nBlast It\nf*ck\nstraße\nblast\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> WordList:
    folder = tmp_path_factory.mktemp("lists")
    (folder / "en.txt").write_text(LIST)
    (folder / "ja.txt").write_text("馬鹿\n馬鹿野郎\n")
    return WordList(path={"en": str(folder / "en.txt"), "ja": str(folder / "ja.txt")})


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("no bad word", 0),
        ("Darn, that DARN cat", 2 / 4),
        ("darning a darned sock", 0),
        ("well, blast\nit all", 2 / 4),  # a phrase may continue over the end of a line
        ("blast him", 1 / 2),
        ("blast it blast it", 1),
        ("oh f*ck this", 2 / 4),
        ("STRASSE", 1),
    ],
)
def test_the_share_of_words_by_hand(words, text, share):
    assert words.score([text], ["en"])[0] == round(share, 4)


def test_without_spaces_entries_match_anywhere(words):
    assert words.score(["この 馬鹿野郎め"], ["ja"])[0] == round(4 / 7, 4)


def test_no_word_and_no_list_have_no_share(words):
    found = words.score(["", "!?", "darn"], ["en", "en", "de"])
    assert all(math.isnan(share) for share in found)


def test_one_list_is_for_all_languages(tmp_path):
    (tmp_path / "list").write_text("merde\n")
    words = WordList(path=str(tmp_path / "list"), column="rude")
    assert words.score(["merde alors"], ["fr"])[0] == 0.5
    assert words.read_content_keys().keys() == {""}


@given(st.lists(st.text(), max_size=5), st.sampled_from(["en", "ja"]))
def test_any_text_has_a_share_or_none(words, texts, language):
    for share in words.score(texts, [language] * len(texts)):
        assert math.isnan(share) or 0 <= share <= 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "does not exist"),
        (b"\n# only this\n", "no entries"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path, data, message):
    path = tmp_path / "list.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        WordList(path=str(path)).score(["a"], ["en"])
