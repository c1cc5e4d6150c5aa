import numpy as np
import pyarrow as pa
import pytest

from trainrig.corpus.signatures.signatures import load_columns, save_columns
from trainrig.errors import DataError
from trainrig.storage import bucket_files, s3_objects

ARRAYS = {
    "ids": np.array(["a", "bc", "é"]),
    "characters": np.array([3, 0, 7]),
    "digests": np.arange(48, dtype=np.uint8).reshape(3, 16),
    "urls": np.arange(48, dtype=np.uint8).reshape(3, 16)[::-1],
    "keys": np.arange(6, dtype=np.uint64).reshape(3, 2) + 2**63,
    "ends": np.array([2, 2, 5]),
    "shingles": np.array([3, 9, 1, 2, 7], np.uint32),
}
NONE = {name: array[:0] for name, array in ARRAYS.items()}


@pytest.mark.parametrize("arrays", [ARRAYS, NONE])
def test_saved_signatures_are_read_whole_or_in_part(tmp_path, arrays):
    path = str(tmp_path / "a.arrow")
    save_columns(path, arrays)
    back = load_columns(path)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert np.array_equal(back[name], array)
        (alone,) = load_columns(path, [name]).values()
        assert np.array_equal(alone, array)
        assert alone.shape == array.shape


def test_other_tools_read_it_as_a_table(tmp_path):
    path = str(tmp_path / "a.arrow")
    save_columns(path, ARRAYS)
    with pa.memory_map(path) as file:
        rows = pa.ipc.open_file(file).read_all().to_pylist()
    assert [row["shingles"] for row in rows] == [[3, 9], [], [1, 2, 7]]
    assert [row["keys"] for row in rows] == ARRAYS["keys"].tolist()
    assert rows[0]["digest"] == bytes(range(16))


def test_shingles_in_a_bucket_are_read_only_on_request(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = f"{s3}/a.arrow"
    long = {**ARRAYS, "shingles": np.arange(2_000_000, dtype=np.uint32)}
    long["ends"] = np.array([0, 10, 2_000_000])
    save_columns(path, long)
    monkeypatch.setattr(bucket_files, "READ_BLOCK", 2**16)
    read = []
    get = s3_objects.S3.get_object

    def counted(*place):
        found = get(*place)
        read.append(len(found))
        return found

    monkeypatch.setattr(s3_objects.S3, "get_object", counted)
    found = load_columns(path, ["keys", "ends"])
    assert np.array_equal(found["keys"], ARRAYS["keys"])
    assert found["ends"].tolist() == [0, 10, 2_000_000]
    assert 0 < sum(read) < 1_000_000
    assert not any(tmp_path.iterdir())  # nothing was downloaded whole
    assert np.array_equal(load_columns(path)["shingles"], long["shingles"])


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0 and no more", b"PK\x03\x04"])
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: not a signature file, or truncated"):
        load_columns(str(path))


def test_a_table_of_another_format_is_refused(tmp_path):
    path = str(tmp_path / "a.arrow")
    table = pa.table({"id": ["a"]})
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="not a signature file"):
        load_columns(path)


def test_a_map_outlives_its_file(tmp_path):
    path = tmp_path / "a.arrow"
    save_columns(str(path), ARRAYS)
    back = load_columns(str(path))
    path.unlink()
    assert back["shingles"].tolist() == ARRAYS["shingles"].tolist()
