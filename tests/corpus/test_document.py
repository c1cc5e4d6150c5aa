import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.documents import compute_document_id


def test_an_id_equals_the_hash_of_its_definition():
    raw = b"docs\nhttp://example.org/\n" + hashlib.sha256(b"body").digest()
    expected = hashlib.blake2b(raw, digest_size=16).hexdigest()
    assert compute_document_id("docs", "http://example.org/", b"body") == expected


@given(st.text(), st.text(), st.binary())
def test_any_page_has_an_id_of_32_hex_digits(source, url, body):
    assert len(bytes.fromhex(compute_document_id(source, url, body))) == 16
