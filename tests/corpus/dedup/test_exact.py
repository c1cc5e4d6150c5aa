import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.exact import text_digest


def test_case_white_space_and_composition_do_not_matter():
    assert text_digest("Café  au\nlait ") == text_digest("CAFE\u0301 au lait")


def test_a_letter_or_a_point_does():
    assert len({text_digest(t) for t in ("cafe", "café", "cafe.", "ca fe", "")}) == 5


@given(st.text(st.characters()))
def test_any_text_has_the_digest_of_its_decomposed_form(text: str):
    digest = text_digest(text)
    assert len(digest) == 16
    assert digest == text_digest(unicodedata.normalize("NFD", text))
