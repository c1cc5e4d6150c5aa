from pathlib import Path

import numpy as np
import pytest

from trainrig import storage
from trainrig.corpus.repeated_text import record_files
from trainrig.errors import DataError

RECORD = np.dtype([("key", "<u8"), ("count", "<i8"), ("first", "<i8")])


def make_records(seed: int, number: int) -> np.ndarray:
    """Return records sorted by key, from the lowest to the highest possible key.

    Every other key is the same in each file.
    """
    dice = np.random.default_rng(seed)
    found = np.empty(number, RECORD)
    found["key"] = dice.integers(0, 2**64, number, np.uint64)
    found["key"][::2] = np.arange(0, number, 2).astype(np.uint64) << np.uint64(50)
    found["key"][:1] = 1
    found["key"][-1:] = 2**64 - 1
    found["count"] = dice.integers(1, 9, number)
    found["first"] = dice.integers(0, 99, number)
    return found[np.argsort(found["key"])]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 1024])
def test_each_key_is_in_one_range(tmp_path: Path, parts: int):
    paths = [str(tmp_path / name) for name in ("one", "two", "none")]
    written = [make_records(1, 400), make_records(2, 300), make_records(3, 0)]
    for path, some in zip(paths, written, strict=True):
        record_files.save_by_key(path, some)
    ranges = [record_files.load_key_range(paths, RECORD, part, parts) for part in range(parts)]
    lowest = -1
    for found in filter(len, ranges):
        assert int(found["key"].min()) > lowest
        lowest = int(found["key"].max())
    together = np.sort(np.concatenate(ranges), order=RECORD.names)
    assert np.array_equal(together, np.sort(np.concatenate(written), order=RECORD.names))


@pytest.mark.parametrize(("part", "parts"), [(0, 1025), (2, 2), (-1, 2)])
def test_a_missing_range_is_refused(tmp_path: Path, part: int, parts: int):
    with pytest.raises(ValueError, match=f"part {part} of {parts}"):
        record_files.load_key_range([], RECORD, part, parts)


def test_of_a_key_the_counts_are_added_and_the_lowest_first_is_kept():
    given = np.array([(5, 1, 7), (3, 2, 9), (5, 4, 2), (3, 1, 9)], RECORD)
    assert record_files.merge_records(given).tolist() == [(3, 3, 9), (5, 5, 2)]
    assert len(record_files.merge_records(given[:0])) == 0


def test_keys_are_found_in_the_files_that_have_them(tmp_path: Path):
    paths = [str(tmp_path / name) for name in ("one", "none")]
    record_files.save_by_key(paths[0], np.array([(3, 1, 1), (8, 2, 2)], RECORD))
    record_files.save_by_key(paths[1], make_records(0, 0))
    keys = np.array([8, 4, 3, 2**64 - 1], np.uint64)
    found = [some["count"].tolist() for some in record_files.find_keys(keys, paths, RECORD)]
    assert found == [[2, 0, 1, 0], [0, 0, 0, 0]]


def test_slices_can_be_read_from_buckets(s3: str):
    path = f"{s3}/folder/keys"
    written = make_records(1, 400)
    record_files.save_by_key(path, written)
    halves = [record_files.load_key_range([path], RECORD, part, 2) for part in range(2)]
    assert np.array_equal(np.concatenate(halves), written)
    assert len(record_files.load_slices(path, RECORD, 5, 5)) == 0


def test_a_slice_is_read_without_the_bounds_of_the_others(tmp_path: Path, monkeypatch):
    path = str(tmp_path / "slices")
    records = make_records(1, 20)
    record_files.save_slices(path, records, np.minimum(np.arange(10_001), 20))
    read = []
    read_range = storage.read_range

    def count_bytes(path: str, begin: int, end: int) -> bytes:
        read.append(end - begin)
        return read_range(path, begin, end)

    monkeypatch.setattr(storage, "read_range", count_bytes)
    assert np.array_equal(record_files.load_slices(path, RECORD, 3, 5), records[3:5])
    assert sum(read) == 8 + 3 * 8 + 2 * RECORD.itemsize


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, left: int):
    path = tmp_path / "keys"
    record_files.save_by_key(str(path), make_records(1, 400))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match="file ends before byte"):
        record_files.load_key_range([str(path)], RECORD, 0, 1)
