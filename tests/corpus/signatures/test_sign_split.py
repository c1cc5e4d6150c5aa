import dataclasses
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.text_signatures import hash_text, shingle

from trainrig.corpus.signatures import signatures
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.normalised_texts import NormalisedTexts
from trainrig.corpus.signatures.signatures import (
    Signatures,
    compute_band_keys,
    compute_keys_and_shingles,
    compute_signatures,
)
from trainrig.corpus.url_keys import compute_url_key

SETTINGS = MinHash()
letters = st.sampled_from("abc ΣİÉ天ไ\n") | st.characters(codec="utf-8")
texts = st.lists(letters, max_size=60).map("".join)
documents = st.lists(st.tuples(st.text("0123456789abcdef"), st.just("http://a/x"), texts))


def same(a: Signatures, b: Signatures) -> bool:
    return all(
        np.array_equal(getattr(a, field.name), getattr(b, field.name))
        and getattr(a, field.name).shape == getattr(b, field.name).shape
        for field in dataclasses.fields(Signatures)
    )


def build_table(documents: list[tuple[str, str, str]], chunks: int = 1) -> pa.Table:
    schema = pa.schema({"id": pa.string(), "url": pa.string(), "text": pa.string()})
    rows = [dict(zip(schema.names, document, strict=True)) for document in documents]
    parts = [pa.Table.from_pylist(rows[nth::chunks], schema) for nth in range(chunks)]
    return pa.concat_tables(parts)


@given(documents)
@tries(max_examples=50)
def test_each_document_has_its_own_values(documents):
    found = Signatures.of(documents, SETTINGS)
    assert found.ids.tolist() == [identity for identity, _, _ in documents]
    assert found.characters.tolist() == [len(text) for _, _, text in documents]
    assert found.keys.shape == (len(documents), SETTINGS.bands)
    for nth, (_, url, text) in enumerate(documents):
        alone = shingle(text, 5)
        assert np.array_equal(np.split(found.shingles, found.ends[:-1])[nth], alone)
        rows = compute_signatures(alone, np.array([len(alone)]), SETTINGS)
        assert np.array_equal(found.keys[nth], compute_band_keys(rows, SETTINGS)[0])
        assert found.digests[nth].tobytes() == hash_text(text)
        assert found.urls[nth].tobytes() == compute_url_key(url)


@given(documents, st.integers(1, 3))
@tries(max_examples=50)
def test_a_table_gives_the_same_signatures_as_its_documents(documents, chunks):
    in_order = [document for nth in range(chunks) for document in documents[nth::chunks]]
    found = Signatures.from_table(build_table(documents, chunks), SETTINGS)
    assert same(found, Signatures.of(in_order, SETTINGS))


@given(documents, st.integers(0, 5))
@tries(max_examples=50)
def test_pieces_give_the_same_signatures_as_the_whole(documents, cut):
    parts = [Signatures.of(part, SETTINGS) for part in (documents[:cut], documents[cut:])]
    assert same(Signatures.concatenate(parts), Signatures.of(documents, SETTINGS))


def test_how_texts_are_cut_into_blocks_does_not_show(monkeypatch):
    documents = [(str(n), "http://a", f"word{n} " * (n * 37 % 90)) for n in range(40)]
    whole = Signatures.of(documents, SETTINGS)
    for size in (1, 100, 1000):
        monkeypatch.setattr(signatures, "_BLOCK", size)
        assert same(Signatures.of(documents, SETTINGS), whole)


@pytest.mark.parametrize("letters", ["ab c", "天気です"])
def test_a_text_of_many_blocks_takes_memory_for_its_own_bytes(letters):
    text = letters * (5_000_000 // len(letters.encode()))
    texts = NormalisedTexts.of([text])
    compute_keys_and_shingles(NormalisedTexts.of(["x"]), SETTINGS)
    tracemalloc.start()
    compute_keys_and_shingles(texts, SETTINGS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The bound allows a word of eight bytes at every second byte, its shingle of four, and as much
    # to sort it.
    assert peak < 9 * len(texts.data)


def test_saved_signatures_are_read_back_and_have_the_same_bytes_each_time(tmp_path):
    documents = [("a", "http://a", "One two, three."), ("b", "", ""), ("c", "http://c/é", "天气")]
    whole = Signatures.of(documents, SETTINGS)
    pieces = [Signatures.from_table(build_table([document]), SETTINGS) for document in documents]
    paths = [tmp_path / "whole.arrow", tmp_path / "pieces.arrow"]
    for path, signed in zip(paths, (whole, Signatures.concatenate(pieces)), strict=True):
        signed.save(str(path))
        assert same(Signatures.load(str(path)), whole)
    assert paths[0].read_bytes() == paths[1].read_bytes()
