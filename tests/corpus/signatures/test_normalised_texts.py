import hashlib
import unicodedata

import numpy as np
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.text_signatures import hash_text

from trainrig.corpus.signatures.normalised_texts import (
    SPACE,
    UNSETTLED,
    NormalisedTexts,
    build_letter_table,
    hash_texts,
)

# Characters that compose, that compose only in lower case, that are reordered, and white space.
ACCENTS = "eJjΣσ İi\u0307\u0301\u030c\u0323가ᄀ\u1161\u11a8\u2126\u212bȺ\n\u3000\x1c\ud800𐐀"
accented = st.lists(st.sampled_from(ACCENTS) | st.characters(), max_size=30).map("".join)


def plain(text: str) -> bytes:
    folded = unicodedata.normalize("NFC", " ".join(text.lower().split()))
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def test_case_white_space_and_composition_do_not_matter():
    assert hash_text("Café  au\nlait ") == hash_text("CAFE\u0301 au lait")


def test_a_letter_or_a_point_does():
    assert len({hash_text(t) for t in ("cafe", "café", "cafe.", "ca fe", "")}) == 5


@given(accented)
@tries(max_examples=300)
def test_any_text_has_the_digest_of_its_definition_and_of_its_decomposed_form(text):
    assert hash_text(text) == plain(text)
    assert hash_text(text) == hash_text(unicodedata.normalize("NFD", text))


@given(st.lists(accented, max_size=6))
def test_many_texts_have_the_digests_of_each(texts):
    found = hash_texts(NormalisedTexts.of(texts))
    assert [row.tobytes() for row in found] == [plain(text) for text in texts]


def test_every_character_is_folded_as_python_folds_it():
    texts = [f"x{chr(code)}{chr(code)} {chr(code)}" for code in range(0, 0x110000, 7)]
    found = hash_texts(NormalisedTexts.of(texts))
    assert [row.tobytes() for row in found] == [plain(text) for text in texts]


def test_no_character_is_final_that_nfc_changes_next_to_another():
    table = build_letter_table()
    settled = [code for code in range(0x110000) if not table[code] & (UNSETTLED | SPACE)]
    together = "".join(map(chr, settled)).lower()
    assert unicodedata.is_normalized("NFC", together)
    assert unicodedata.normalize("NFC", together) == together
    assert len(settled) > 0x110000 - 3000
    spaces = np.flatnonzero(table & np.uint32(SPACE)).tolist()
    assert spaces == [code for code in range(0x110000) if chr(code).isspace()]
