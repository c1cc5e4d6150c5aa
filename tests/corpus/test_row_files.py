from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainrig.corpus.documents import ROW_GROUP, read_columns, writing

SCHEMA = pa.schema([("text", pa.string()), ("number", pa.int64())])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    texts = [None if n % 7 == 0 else f"text {n % 50}" for n in numbers]
    return pa.table({"number": list(numbers), "more": texts, "text": texts})


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1_700), max_size=6))
def test_how_rows_come_does_not_show_in_the_bytes(tmp_path: Path, counts: list[int]) -> None:
    whole = tmp_path / "whole.parquet"
    pieces = tmp_path / "pieces.parquet"
    with writing(str(whole), SCHEMA) as file:
        file.add(rows(0, sum(counts)))
    with writing(str(pieces), SCHEMA) as file:
        for n, count in enumerate(counts):
            file.add(rows(sum(counts[:n]), count))
    assert pieces.read_bytes() == whole.read_bytes()
    there = rows(0, sum(counts)).select(SCHEMA.names).cast(SCHEMA)
    assert read_columns(str(whole), SCHEMA.names) == there


def test_row_groups_are_of_a_set_size(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    with writing(path, SCHEMA) as file:
        file.add(rows(0, 2 * ROW_GROUP + 5))
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sizes == [ROW_GROUP, ROW_GROUP, 5]


def test_no_rows_are_a_file_with_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    with writing(path, SCHEMA):
        pass
    assert pq.read_table(path) == SCHEMA.empty_table()


def test_no_file_is_left_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(ZeroDivisionError), writing(str(path), SCHEMA) as file:
        file.add(rows(0, 10))
        raise ZeroDivisionError
    assert not path.exists()
