import numpy as np
import pytest
from hypothesis import given
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


def test_the_separator_fits_the_ids_of_any_vocabulary() -> None:
    for vocabulary in VOCABULARIES:
        assert vocabulary <= np.iinfo(suffix_arrays.choose_dtype(vocabulary)).max
    assert suffix_arrays.choose_dtype(2**16 - 1).itemsize == 2


@given(ids=id_lists(vocabulary=4))
def test_heads_count_the_smaller_ids(ids: list[int]) -> None:
    heads = suffix_arrays.count_heads(np.array(ids, "<u2"), 4)
    assert heads.tolist() == [sum(id_ < head for id_ in ids) for head in range(6)]
