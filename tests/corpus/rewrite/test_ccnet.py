import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.rewrite.ccnet import Reading, paragraph_keys


def key(normal: str) -> int:
    return int.from_bytes(hashlib.sha1(normal.encode()).digest()[:8], "little")


@pytest.mark.parametrize(
    ("line", "paper", "cc_net"),
    [
        ("  The Cat, in 2024!  ", "the cat in 0000", "the cat, in 0000!"),
        ("L’été — à 20%", "lete  a 00", "lété  à 00%"),
        ("« Ａ１٣ »", " ａ00 ", " ａ00 "),
        ("tab\there", "tabhere", "tabhere"),
        ("...", "", "..."),
        ("", "", ""),
    ],
)
def test_keys_are_of_what_the_reading_leaves(line: str, paper: str, cc_net: str):
    assert paragraph_keys(line, "paper").tolist() == [key(paper)]
    assert paragraph_keys(line, "cc_net").tolist() == [key(cc_net)]


@given(st.text(st.characters()), st.sampled_from(["paper", "cc_net"]))
def test_every_line_has_a_key_whatever_its_case(text: str, reading: Reading):
    keys = paragraph_keys(text, reading)
    assert len(keys) == text.count("\n") + 1
    assert keys.tolist() == paragraph_keys(text.lower(), reading).tolist()
