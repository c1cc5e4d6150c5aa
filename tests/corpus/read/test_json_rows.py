import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.read import json_rows
from trainrig.corpus.read.json_rows import contains_value, find_text, find_value, iterate_values

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


class Trickle(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, count: int) -> None:
        super().__init__(data)
        self.count = count

    def read(self, size: int | None = -1) -> bytes:
        del size
        return super().read(self.count)


def split(data: bytes, count: int = 1 << 20, longest: int = 1 << 20) -> list[Any]:
    found = iterate_values(Trickle(data, count), longest)
    return [None if value.text is None else json.loads(value.text) for value in found]


@given(st.lists(objects, max_size=4), st.integers(1, 9), st.sampled_from([None, 1]), st.booleans())
def test_values_are_those_of_the_json_library(
    rows: list[Any], count: int, indent: int | None, ascii_only: bool
):
    array = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert split(array, count) == json.loads(array)
    apart = "\n".join(json.dumps(row, indent=indent) for row in rows).encode()
    assert split(apart, count) == rows


def test_positions_and_overlong_values():
    data = b'[ {"a": 1},\n  {"a": "' + b"x" * 90 + b'"}, {"a": 2} ]\n'
    found = list(iterate_values(Trickle(data, 7), 50))
    assert [value.start for value in found] == [2, 14, data.index(b'{"a": 2}')]
    assert [value.text for value in found] == [b'{"a": 1}', None, b'{"a": 2}']


@pytest.mark.parametrize("data", [b'[{"a": 1}, {"a"', b'[{"a": 1},', b'{"a": 1} nonsense'])
def test_a_torn_end_is_a_value_that_is_no_object(data: bytes):
    *whole, last = iterate_values(Trickle(data, 3), 1000)
    assert [json.loads(value.text or b"") for value in whole] == [{"a": 1}]
    assert isinstance(json_rows.parse_object(last.text or b""), str)


ROW = {"a.b": 1, "a": {"b": 2, "c": {"d": "x"}, "n": None}, "t": ["p", None, "q"]}


@pytest.mark.parametrize(
    ("name", "value", "there"),
    [("a.b", 1, True), ("a.c.d", "x", True), ("a.n", None, True), ("a.z", None, False)],
)
def test_a_dotted_name_is_looked_up_whole_first(name: str, value: Any, there: bool):
    assert (find_value(ROW, name), contains_value(ROW, name)) == (value, there)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("a.c.d", "x"),
        ("t", "p|q"),
        (("a.c.d", "missing", "t"), "x|p|q"),
        ("missing", None),
        (("missing", "a.n"), None),
    ],
)
def test_texts_are_joined_in_the_order_of_their_names(names: Any, text: str | None):
    assert find_text(ROW, names, "|") == text


def test_a_number_is_no_text():
    with pytest.raises(TypeError):
        find_text(ROW, "a.b", "|")
