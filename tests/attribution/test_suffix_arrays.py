import inspect
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.attribution import suffix_arrays

VOCABULARIES = [4, 2**16 - 1, 2**16, 2**24 + 5]


@st.composite
def id_lists(draw: st.DrawFn, vocabulary: int) -> list[int]:
    """Draw ids of few different values, so that long repeats are common."""
    some = draw(st.lists(st.integers(0, vocabulary), min_size=1, max_size=3))
    return draw(st.lists(st.sampled_from(some), max_size=60))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(data=st.data())
def test_suffixes_are_in_the_order_of_their_ids(data: st.DataObject, vocabulary: int) -> None:
    listed = data.draw(id_lists(vocabulary))
    ids = np.array(listed, suffix_arrays.choose_dtype(vocabulary))
    order = suffix_arrays.sort_suffixes(ids).tolist()
    assert order == sorted(range(len(listed)), key=lambda place: listed[place:])


def find_plainly(ids: list[int], query: list[int]) -> list[int]:
    """Return the longest match from each position, by trying all lengths and places."""
    return [
        max(
            length
            for length in range(len(query) - begin + 1)
            if any(
                ids[at : at + length] == query[begin : begin + length] for at in range(len(ids) + 1)
            )
        )
        for begin in range(len(query))
    ]


@pytest.mark.parametrize("long_match", [1, 3, suffix_arrays.LONG_MATCH])
@settings(max_examples=100)
@given(
    ids=id_lists(vocabulary=3), parts=st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)))
)
def test_matches_are_as_long_as_a_plain_search_finds(
    long_match: int, ids: list[int], parts: list[tuple[int, int]]
) -> None:
    """The query is pieces of the text, so that long matches overlap and end at several places."""
    query = [id_ for begin, length in parts for id_ in ids[begin : begin + length]][:60] or [0]
    array = np.array([*ids, 4], "<u2")
    order = suffix_arrays.sort_suffixes(array)
    heads = suffix_arrays.count_heads(array, 4)
    find = inspect.unwrap(suffix_arrays.find_match_lengths)  # compiled code keeps its constants
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_arrays, "LONG_MATCH", long_match)
        found = find(array, order, heads, np.array(query, np.int64))
    assert found.tolist() == find_plainly(ids, query)
    compiled = suffix_arrays.find_match_lengths(array, order, heads, np.array(query, np.int64))
    assert compiled.tolist() == found.tolist()


def test_a_copied_document_takes_time_in_proportion_to_its_length() -> None:
    """Ten times the text must not take a hundred times as long."""
    ids = np.random.default_rng(0).integers(0, 1_000, 200_000).astype("<u2")
    order = suffix_arrays.sort_suffixes(ids)
    heads = suffix_arrays.count_heads(ids, 1_000)
    seconds = []
    for length in (16_000, 160_000):
        query = ids[:length].astype(np.int64)
        suffix_arrays.find_match_lengths(ids, order, heads, query[:10])
        began = time.process_time()
        found = suffix_arrays.find_match_lengths(ids, order, heads, query)
        seconds.append(time.process_time() - began)
        assert found.tolist() == list(range(length, 0, -1))
    assert seconds[1] < 40 * max(seconds[0], 0.01)


def test_the_separator_fits_the_ids_of_any_vocabulary() -> None:
    for vocabulary in VOCABULARIES:
        assert vocabulary <= np.iinfo(suffix_arrays.choose_dtype(vocabulary)).max
    assert suffix_arrays.choose_dtype(2**16 - 1).itemsize == 2


@given(ids=id_lists(vocabulary=4))
def test_heads_count_the_smaller_ids(ids: list[int]) -> None:
    heads = suffix_arrays.count_heads(np.array(ids, "<u2"), 4)
    assert heads.tolist() == [sum(id_ < head for id_ in ids) for head in range(6)]
