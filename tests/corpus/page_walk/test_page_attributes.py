"""Searches of the walk over a page, compared with those of Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.page_walk.page_attributes import find_byte


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 255))
def test_a_byte_is_found_where_python_finds_it(page: bytes, start: int, byte: int):
    page += b" " * (-len(page) % 8)
    start = min(start, len(page))
    found = find_byte(np.frombuffer(page, np.uint8), start, np.uint64(byte))
    expected = page.find(bytes([byte]), start)
    assert found == (expected if expected >= 0 else len(page))
