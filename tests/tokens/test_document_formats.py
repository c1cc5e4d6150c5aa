import errno
import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig.errors import DataError
from trainrig.tokens.document_formats import FORMATS, StagePart, name_place

COLUMNS = ("text", "id", "meta.url")
TABLE = pa.Table.from_pylist(
    [
        {"text": f"word {n} naïve " * 8, "id": str(n), "meta": {"url": "x" * (n % 50)}}
        for n in range(3_000)
    ]
)


def parquet(compression: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=700, compression=compression)
    return sink.getvalue()


def arrow(new: Any) -> bytes:
    sink = io.BytesIO()
    with new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, 1_000)
    return sink.getvalue()


WHOLE = {
    "snappy": ("Parquet", parquet("snappy")),
    "plain": ("Parquet", parquet("none")),
    "stream": ("Arrow", arrow(pa.ipc.new_stream)),
    "file": ("Arrow", arrow(pa.ipc.new_file)),
}


def read_rows(kind: str, path: str) -> int:
    made = FORMATS[kind]
    cuts = made.cut(path, COLUMNS, 10**5)
    pieces = [StagePart(0, path, path, c.begin, c.end, c.weight, c.whole) for c in cuts]
    return sum(1 for piece in pieces for _ in made.read(piece, COLUMNS))


@pytest.mark.parametrize("name", WHOLE)
def test_flipped_bytes_are_reported_in_one_line_with_the_file_and_advice(name, tmp_path):
    kind, whole = WHOLE[name]
    path = tmp_path / "damaged"
    path.write_bytes(whole)
    assert read_rows(kind, str(path)) == 3_000
    draw = random.Random(name)
    detected = 0
    for _ in range(60):
        damaged = bytearray(whole)
        begin, width = draw.choice([(0, len(whole)), (0, 800), (len(whole) - 800, 800)])
        for _ in range(20):
            damaged[begin + draw.randrange(width)] ^= draw.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            read_rows(kind, str(path))
        except DataError as error:
            detected += 1
            assert str(error).startswith(f"{path}: ")
            assert "; download or write the file again" in str(error) or "no column" in str(error)
            assert "\n" not in str(error)
    assert detected > 30  # not every flipped bit can be detected


@pytest.mark.parametrize(
    ("kind", "opener"),
    [("Parquet", "trainrig.storage.open_for_arrow"), ("Arrow", "pyarrow.memory_map")],
)
def test_disk_errors_do_not_blame_the_file(kind, opener, monkeypatch):
    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(opener, refuse)
    with pytest.raises(OSError, match="Input/output error"):
        read_rows(kind, "a.file")


def test_a_place_is_a_byte_of_json_lines_and_a_row_of_columns():
    assert name_place("rows.jsonl.gz", 5812) == "rows.jsonl.gz, byte 5,812"
    assert name_place("rows.parquet", 7) == "rows.parquet, row 7"
