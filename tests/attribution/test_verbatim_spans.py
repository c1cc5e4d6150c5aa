import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.token_folders import make_encoder, write_token_folder

from trainrig.attribution import CorpusIndex, open_index
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.attribution.verbatim_spans import count_covered, decode_with_places, find_spans

DOCUMENTS = {"web": [[1, 2, 3, 1, 2, 4], [4, 4, 5]], "books": [[2, 3, 4, 4], [6]]}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> CorpusIndex:
    at = tmp_path_factory.mktemp("spans")
    tokens = write_token_folder(at / "tokens", [DOCUMENTS], 270)
    output = str(at / "index")
    index_tokens(CorpusIndexing(tokens=(tokens,), output=output, workers=0, partition_tokens=8))
    return open_index(output)


def stands(ids: list[int]) -> bool:
    return any(
        document[place : place + len(ids)] == ids
        for documents in DOCUMENTS.values()
        for document in documents
        for place in range(len(document))
    )


@settings(max_examples=200)
@given(ids=st.lists(st.integers(1, 7), min_size=1, max_size=15), minimum=st.integers(1, 4))
def test_spans_are_those_that_cannot_be_made_longer(
    index: CorpusIndex, ids: list[int], minimum: int
) -> None:
    there = {
        (begin, end)
        for begin in range(len(ids))
        for end in range(begin + 1, len(ids) + 1)
        if stands(ids[begin:end])
    }
    maximal = {
        (begin, end)
        for begin, end in there
        if (begin - 1, end) not in there and (begin, end + 1) not in there
    }
    expected = {span for span in maximal if span[1] - span[0] >= minimum}
    spans = find_spans(index, ids, minimum)
    assert {(span.begin, span.end) for span in spans} == expected
    assert len(spans) == len(expected)
    tokens = sum(len(document) for own in DOCUMENTS.values() for document in own)
    for span in spans:
        shares = [
            sum(document.count(token) for own in DOCUMENTS.values() for document in own) / tokens
            for token in ids[span.begin : span.end]
        ]
        assert span.rarity == pytest.approx(np.log10(shares).sum())
    assert [span.rarity for span in spans] == sorted(span.rarity for span in spans)
    covered = {place for begin, end in expected for place in range(begin, end)}
    assert count_covered(spans) == len(covered)


@given(text=st.text(max_size=20))
def test_characters_are_counted_token_by_token(text: str) -> None:
    encoder = make_encoder()
    (ids,) = encoder.encode_batch([text])
    decoded, places = decode_with_places(encoder, ids.tolist())
    assert decoded == text == encoder.decode(ids.tolist())
    assert len(places) == len(ids) + 1 and (places[0], places[-1]) == (0, len(text))
    assert places == sorted(places)


@given(ids=st.lists(st.integers(0, 269), max_size=12))
def test_ids_that_are_no_utf8_are_decoded_as_the_tokenizer_does(ids: list[int]) -> None:
    encoder = make_encoder()
    assert decode_with_places(encoder, ids)[0] == encoder.decode(ids)
