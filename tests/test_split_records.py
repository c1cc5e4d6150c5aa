import itertools
from pathlib import Path
from random import Random
from random import Random
from random import Random
from unittest import mock

import pyarrow as pa
import pyarrow as pa
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.s3_proxy import Proxy

from trainrig import storage
from trainrig.manifest import split_records
from trainrig.manifest.split_records import RecordRow, RecordTables, RecordWriter, iterate_rows


def make_row(name: str, count: int = 1) -> RecordRow:
    return RecordRow(name, f'{{"documents":{count}}}', "{}")


def read_names(folder: str) -> list[str]:
    tables = RecordTables(folder)
    found: list[str] = tables.read(tables.list_paths())["name"].to_pylist()
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the writers, in a list of one."""
    now = [100.0]
    monkeypatch.setattr(split_records.time, "monotonic", lambda: now[0])
    return now


def test_a_killed_driver_loses_the_records_of_the_last_second_alone(
    tmp_path: Path, clock: list[float]
) -> None:
    records = RecordWriter(str(tmp_path), 0)
    records.add(make_row("a"))
    assert read_names(str(tmp_path)) == ["a"]  # the first one at once
    records.add(make_row("b"))
    clock[0] += 0.9
    records.add(make_row("c"))
    assert read_names(str(tmp_path)) == ["a"]
    clock[0] += 0.1
    records.add(make_row("d"))
    assert read_names(str(tmp_path)) == ["a", "b", "c", "d"]


def test_an_error_loses_no_record(tmp_path: Path, clock: list[float]) -> None:
    with pytest.raises(ZeroDivisionError), RecordWriter(str(tmp_path), 0) as records:
        records.add(make_row("a"))
        records.add(make_row("b"))
        raise ZeroDivisionError
    assert read_names(str(tmp_path)) == ["a", "b"]


def test_batches_are_put_together_as_they_become_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_records, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(split_records, "BATCHES_TOGETHER", 5)
    names = [f"s{number}" for number in range(23)]
    with RecordWriter(str(tmp_path), 0) as records:
        for name in names:
            records.add(make_row(name))
    assert len(list(tmp_path.iterdir())) == 23 // 5 + 23 % 5
    assert sorted(read_names(str(tmp_path))) == sorted(names)


def test_a_finished_phase_has_one_table(tmp_path: Path) -> None:
    tables = RecordTables(str(tmp_path))
    for number in range(3):
        with tables.open_writer(tables.list_paths()) as records:
            records.add(make_row(f"s{number}"))
    (tmp_path / "other.npz").write_bytes(b"")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "records.parquet").write_bytes(b"of another phase")
    tables.merge()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "below",
        "other.npz",
        "records.parquet",
    ]
    table = pq.read_table(tmp_path / "records.parquet")
    assert table.to_pylist()[2] == {"name": "s2", "counts": '{"documents":1}', "files": "{}"}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12), st.booleans())
def test_the_newest_record_of_a_split_counts(records: list[tuple[int, int]], merged: bool) -> None:
    """Compare with a dictionary; a kill may leave batches that the whole table holds too."""
    files: dict[str, bytes] = {}
    with (
        mock.patch.object(storage, "write", files.__setitem__),
        mock.patch.object(storage, "read_files", lambda paths: [bytes(files[p]) for p in paths]),
        mock.patch.object(storage, "list_files", lambda folder: sorted(files)),
        mock.patch.object(storage, "delete_files", lambda paths: list(paths)),  # killed before
    ):
        tables = RecordTables("out")
        expected = {}
        for number, count in records:
            with tables.open_writer(tables.list_paths()) as writer:
                writer.add(make_row(f"s{number}", count))
            expected[f"s{number}"] = count
            if merged:
                tables.merge()
        table = tables.read(tables.list_paths())
        rows = iterate_rows(table, sorted(expected, reverse=True))
        assert [row.name for row in rows] == sorted(expected, reverse=True)
        found = {row["name"]: row["counts"] for row in table.to_pylist()}
        assert found == {name: f'{{"documents":{count}}}' for name, count in expected.items()}


def build_chunks(count: int, rows: int, counts: str) -> pa.Table:
    """Return a table of chunks that share the memory of one column, all with the same `counts`."""
    shared = pa.array([counts] * rows, pa.large_string())
    names = [[f"s{chunk}-{row}" for row in range(rows)] for chunk in range(count)]
    chunked = pa.chunked_array([pa.array(chunk, pa.large_string()) for chunk in names])
    return pa.table([chunked, pa.chunked_array([shared] * count), chunked], RecordRow._fields)


def test_rows_of_a_column_above_2_gib_are_found() -> None:
    table = build_chunks(260, 100, "x" * 100_000)
    table = table.set_column(1, "counts", table["counts"].cast(pa.string()))
    assert table["counts"].nbytes > 2**31
    wanted = [f"s{chunk}-{chunk % 100}" for chunk in reversed(range(260))]
    rows = list(iterate_rows(table, wanted))
    assert [(row.name, row.files) for row in rows] == [(name, name) for name in wanted]
    assert {len(row.counts) for row in rows} == {100_000}


def test_few_rows_are_copied_at_a_time() -> None:
    table = build_chunks(200, 100, "x" * 10_000)
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        found = sum(1 for _ in iterate_rows(table, table["name"].to_pylist()))
    finally:
        pa.set_memory_pool(before)
    assert found == 20_000
    assert 0 < counting.max_memory() < table.nbytes / 10


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.randoms())
def test_rows_of_many_chunks_come_in_the_wanted_order(
    chunks: list[list[int]], random: Random
) -> None:
    """Compare with a list, in which equal rows have different names."""
    rows = [
        [make_row(f"{number}-{place}", count) for place, count in enumerate(chunk)]
        for number, chunk in enumerate(chunks)
    ]
    schema = pa.schema([(name, pa.large_string()) for name in RecordRow._fields])
    table = pa.concat_tables(
        [schema.empty_table()]
        + [pa.Table.from_pylist([row._asdict() for row in chunk], schema) for chunk in rows]
    )
    wanted = [row for chunk in rows for row in chunk]
    random.shuffle(wanted)
    with mock.patch.object(split_records, "_ROWS_TOGETHER", 3):
        assert list(iterate_rows(table, [row.name for row in wanted])) == wanted


def test_records_of_many_bytes_become_one_table_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_records, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(split_records, "_BYTES_HELD", 5_000)
    with RecordWriter(str(tmp_path), 0) as records:
        for number in range(8):
            records.add(RecordRow(f"s{number}", "x" * 1_500, "{}"))
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(read_names(str(tmp_path))) == [f"s{number}" for number in range(8)]


@pytest.mark.parametrize("together", [2, 100])
def test_records_wait_until_a_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], together: int
) -> None:
    """A batch alone and one that takes the rows of others, whose first write fails."""
    monkeypatch.setattr(split_records, "BATCHES_TOGETHER", together)
    write = storage.write
    fails = iter([False, True, False])

    def write_or_fail(path: str, data: bytes) -> None:
        if next(fails):
            raise OSError("the disk is full")
        write(path, data)

    monkeypatch.setattr(storage, "write", write_or_fail)
    with pytest.raises(OSError, match="disk is full"), RecordWriter(str(tmp_path), 0) as records:
        records.add(make_row("a"))
        records.add(make_row("b"))
        clock[0] += 1
        records.add(make_row("c"))
    assert read_names(str(tmp_path)) == ["a", "b", "c"]


def build_chunks(count: int, rows: int, counts: str) -> pa.Table:
    """Return a table of chunks that share the memory of one column, all with the same `counts`."""
    shared = pa.array([counts] * rows, pa.large_string())
    names = [[f"s{chunk}-{row}" for row in range(rows)] for chunk in range(count)]
    chunked = pa.chunked_array([pa.array(chunk, pa.large_string()) for chunk in names])
    return pa.table([chunked, pa.chunked_array([shared] * count), chunked], RecordRow._fields)


def test_rows_of_a_column_above_2_gib_are_found() -> None:
    table = build_chunks(260, 100, "x" * 100_000)
    table = table.set_column(1, "counts", table["counts"].cast(pa.string()))
    assert table["counts"].nbytes > 2**31
    wanted = [f"s{chunk}-{chunk % 100}" for chunk in reversed(range(260))]
    rows = list(iterate_rows(table, wanted))
    assert [(row.name, row.files) for row in rows] == [(name, name) for name in wanted]
    assert {len(row.counts) for row in rows} == {100_000}


def test_few_rows_are_copied_at_a_time() -> None:
    table = build_chunks(200, 100, "x" * 10_000)
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        found = sum(1 for _ in iterate_rows(table, table["name"].to_pylist()))
    finally:
        pa.set_memory_pool(before)
    assert found == 20_000
    assert 0 < counting.max_memory() < table.nbytes / 10


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.randoms())
def test_rows_of_many_chunks_come_in_the_wanted_order(
    chunks: list[list[int]], random: Random
) -> None:
    """Compare with a list, in which equal rows have different names."""
    rows = [
        [make_row(f"{number}-{place}", count) for place, count in enumerate(chunk)]
        for number, chunk in enumerate(chunks)
    ]
    schema = pa.schema([(name, pa.large_string()) for name in RecordRow._fields])
    table = pa.concat_tables(
        [schema.empty_table()]
        + [pa.Table.from_pylist([row._asdict() for row in chunk], schema) for chunk in rows]
    )
    wanted = [row for chunk in rows for row in chunk]
    random.shuffle(wanted)
    with mock.patch.object(split_records, "_ROWS_TOGETHER", 3):
        assert list(iterate_rows(table, [row.name for row in wanted])) == wanted


def test_records_of_many_bytes_become_one_table_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_records, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(split_records, "_BYTES_HELD", 5_000)
    with RecordWriter(str(tmp_path), 0) as records:
        for number in range(8):
            records.add(RecordRow(f"s{number}", "x" * 1_500, "{}"))
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(read_names(str(tmp_path))) == [f"s{number}" for number in range(8)]


@pytest.mark.parametrize("together", [2, 100])
def test_records_wait_until_a_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], together: int
) -> None:
    """A batch alone and one that takes the rows of others, whose first write fails."""
    monkeypatch.setattr(split_records, "BATCHES_TOGETHER", together)
    write = storage.write
    fails = iter([False, True, False])

    def write_or_fail(path: str, data: bytes) -> None:
        if next(fails):
            raise OSError("the disk is full")
        write(path, data)

    monkeypatch.setattr(storage, "write", write_or_fail)
    with pytest.raises(OSError, match="disk is full"), RecordWriter(str(tmp_path), 0) as records:
        records.add(make_row("a"))
        records.add(make_row("b"))
        clock[0] += 1
        records.add(make_row("c"))
    assert read_names(str(tmp_path)) == ["a", "b", "c"]


def build_chunks(count: int, rows: int, counts: str) -> pa.Table:
    """Return a table of chunks that share the memory of one column, all with the same `counts`."""
    shared = pa.array([counts] * rows, pa.large_string())
    names = [[f"s{chunk}-{row}" for row in range(rows)] for chunk in range(count)]
    chunked = pa.chunked_array([pa.array(chunk, pa.large_string()) for chunk in names])
    return pa.table([chunked, pa.chunked_array([shared] * count), chunked], RecordRow._fields)


def test_rows_of_a_column_above_2_gib_are_found() -> None:
    table = build_chunks(260, 100, "x" * 100_000)
    table = table.set_column(1, "counts", table["counts"].cast(pa.string()))
    assert table["counts"].nbytes > 2**31
    wanted = [f"s{chunk}-{chunk % 100}" for chunk in reversed(range(260))]
    rows = list(iterate_rows(table, wanted))
    assert [(row.name, row.files) for row in rows] == [(name, name) for name in wanted]
    assert {len(row.counts) for row in rows} == {100_000}


def test_few_rows_are_copied_at_a_time() -> None:
    table = build_chunks(200, 100, "x" * 10_000)
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        found = sum(1 for _ in iterate_rows(table, table["name"].to_pylist()))
    finally:
        pa.set_memory_pool(before)
    assert found == 20_000
    assert 0 < counting.max_memory() < table.nbytes / 10


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.randoms())
def test_rows_of_many_chunks_come_in_the_wanted_order(
    chunks: list[list[int]], random: Random
) -> None:
    """Compare with a list, in which equal rows have different names."""
    rows = [
        [make_row(f"{number}-{place}", count) for place, count in enumerate(chunk)]
        for number, chunk in enumerate(chunks)
    ]
    schema = pa.schema([(name, pa.large_string()) for name in RecordRow._fields])
    table = pa.concat_tables(
        [schema.empty_table()]
        + [pa.Table.from_pylist([row._asdict() for row in chunk], schema) for chunk in rows]
    )
    wanted = [row for chunk in rows for row in chunk]
    random.shuffle(wanted)
    with mock.patch.object(split_records, "_ROWS_TOGETHER", 3):
        assert list(iterate_rows(table, [row.name for row in wanted])) == wanted


def test_records_of_many_bytes_become_one_table_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_records, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(split_records, "_BYTES_HELD", 5_000)
    with RecordWriter(str(tmp_path), 0) as records:
        for number in range(8):
            records.add(RecordRow(f"s{number}", "x" * 1_500, "{}"))
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(read_names(str(tmp_path))) == [f"s{number}" for number in range(8)]


@pytest.mark.parametrize("together", [2, 100])
def test_records_wait_until_a_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], together: int
) -> None:
    """A batch alone and one that takes the rows of others, whose first write fails."""
    monkeypatch.setattr(split_records, "BATCHES_TOGETHER", together)
    write = storage.write
    fails = iter([False, True, False])

    def write_or_fail(path: str, data: bytes) -> None:
        if next(fails):
            raise OSError("the disk is full")
        write(path, data)

    monkeypatch.setattr(storage, "write", write_or_fail)
    with pytest.raises(OSError, match="disk is full"), RecordWriter(str(tmp_path), 0) as records:
        records.add(make_row("a"))
        records.add(make_row("b"))
        clock[0] += 1
        records.add(make_row("c"))
    assert read_names(str(tmp_path)) == ["a", "b", "c"]


def test_forgotten_splits_have_no_record(tmp_path: Path) -> None:
    tables = RecordTables(str(tmp_path))
    with tables.open_writer([]) as records:
        for name in "abc":
            records.add(make_row(name))
    tables.forget(["b", "unknown"])
    assert read_names(str(tmp_path)) == ["a", "c"]
    with pytest.raises(FileNotFoundError, match="no record of the split b"):
        list(iterate_rows(tables.read(tables.list_paths()), ["a", "b"]))


def test_several_writers_share_a_folder(tmp_path: Path) -> None:
    writers = [RecordTables(str(tmp_path)).open_writer([]) for _ in range(2)]
    for writer, name in zip(itertools.cycle(writers), "abcd", strict=False):
        with writer as records:
            records.add(make_row(name))
    assert sorted(read_names(str(tmp_path))) == list("abcd")


def test_a_phase_in_a_bucket_takes_few_requests(proxy: Proxy, s3: str, clock: list[float]) -> None:
    proxy.count()
    tables = RecordTables(f"{s3}/done")
    with tables.open_writer(tables.list_paths()) as records:
        for number in range(1_000):
            records.add(make_row(f"s{number}"))
            clock[0] += 0.01
    tables.merge()
    assert len(read_names(f"{s3}/done")) == 1_000
    requests = proxy.count()
    assert sum(requests.values()) <= 11 + 11 + 6, requests  # batches, read again, and the table
