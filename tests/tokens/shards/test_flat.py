import contextlib
import gc
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.shards import flat_arrays
from trainrig.tokens.shards.block_cache import BLOCK, BlockCache
from trainrig.tokens.shards.flat_arrays import MAPS, SUMMED, SUMS, FlatArray, compute_block_sums

INT64 = np.dtype("<i8")


def store_array(path: str, values: np.ndarray, cache: BlockCache | None = None) -> FlatArray:
    storage.write(path, values.tobytes())
    storage.write(path + SUMS, compute_block_sums([values.tobytes()]))
    return FlatArray(path, values.dtype, len(values), cache)


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    """Return a path for an array, on disk or in a bucket, and its cache."""
    if request.param == "disk":
        return str(tmp_path / "array"), None
    cache = BlockCache(folder=str(tmp_path / "blocks"))
    return f"{request.getfixturevalue('s3')}/array", cache


# More than two blocks, with repeats (also at the boundary), and with some absent values.
ASCENDING = np.sort(np.random.default_rng(1).integers(0, 10**6, 2 * BLOCK // 8 + 17)) * 2
ASCENDING[BLOCK // 8 - 5 : BLOCK // 8 + 5] = ASCENDING[BLOCK // 8]


def test_any_slice_and_any_elements_equal_the_file(place):
    path, cache = place
    array = store_array(path, ASCENDING, cache)
    assert len(array) == len(ASCENDING)
    ends = [0, 1, BLOCK // 8 - 1, BLOCK // 8, BLOCK // 8 + 1, len(ASCENDING)]
    for begin in ends:
        for end in (bound for bound in ends if bound >= begin):
            assert (array.read(begin, end) == ASCENDING[begin:end]).all()
    indices = np.random.default_rng(2).integers(0, len(ASCENDING), (7, 30))
    assert (array.take(indices) == ASCENDING[indices]).all()
    assert array.take(np.empty((0, 3), dtype=np.int64)).shape == (0, 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searching_agrees_with_numpy(place, side):
    path, cache = place
    array = store_array(path, ASCENDING, cache)
    dice = np.random.default_rng(3)
    block_starts = ASCENDING[:: BLOCK // 8]
    values = np.concatenate([dice.integers(-5, 2 * 10**6 + 5, 40), block_starts, block_starts + 1])
    whole = np.searchsorted(ASCENDING, values, side)
    assert (array.search(values, side) == whole).all()
    for begin, end in [(0, 5), (100, 100), (BLOCK // 8 - 3, BLOCK // 8 + 3), (7, len(ASCENDING))]:
        expected = begin + np.searchsorted(ASCENDING[begin:end], values, side)
        assert (array.search(values, side, begin, end) == expected).all()
    assert array.search(values.reshape(-1, 1), side).shape == (len(values), 1)


def test_only_the_stretch_that_is_searched_need_ascend(place):
    path, cache = place
    values = np.arange(2 * BLOCK // 8)
    begin = BLOCK // 8 - 3
    end = BLOCK // 8 + 3
    outside = np.concatenate([values[:begin][::-1] + 10**9, values[begin:end], -values[end:]])
    array = store_array(path, outside, cache)
    for side in ("left", "right"):
        expected = np.searchsorted(values, values[begin:end], side)
        assert (array.search(values[begin:end], side, begin, end) == expected).all()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(-1, 21), st.data())
def test_searching_any_stretch_of_a_short_array_agrees_with_numpy(
    tmp_path_factory, elements, value, data
):
    elements = np.sort(np.array(elements, dtype=INT64))
    array = store_array(str(tmp_path_factory.mktemp("flat") / "a"), elements)
    begin = data.draw(st.integers(0, len(elements)))
    end = data.draw(st.integers(begin, len(elements)))
    for side in ("left", "right"):
        expected = begin + np.searchsorted(elements[begin:end], [value], side)
        assert array.search(np.array([value]), side, begin, end).tolist() == expected.tolist()


def test_a_value_outside_the_type_cannot_be_searched(tmp_path):
    array = store_array(str(tmp_path / "a"), np.array([1, 2], dtype="<u2"))
    assert array.search(np.array([2])).tolist() == [2]
    with pytest.raises(OverflowError, match="does not fit uint16"):
        array.search(np.array([70_000]))


def test_indices_beyond_the_array_are_refused(place):
    path, cache = place
    array = store_array(path, np.arange(5), cache)
    for begin, end in [(-1, 2), (3, 6), (4, 3)]:
        with pytest.raises(IndexError, match=f"elements {begin} to {end} of 5"):
            array.read(begin, end)
    for index in (-1, 5):
        with pytest.raises(IndexError, match="of 5"):
            array.take(np.array([0, index]))


def test_returned_arrays_are_read_only(place):
    path, cache = place
    piece = store_array(path, np.arange(5), cache).read(1, 3)
    with pytest.raises(ValueError, match="read-only"):
        piece[0] = 9


def test_an_empty_array_reads_nothing(place):
    path, cache = place
    array = FlatArray(path, INT64, 0, cache)  # the file does not even exist
    assert array.read(0, 0).tolist() == []
    assert array.take(np.array([], dtype=np.int64)).tolist() == []
    assert array.search(np.array([3])).tolist() == [0]


def test_the_file_is_opened_at_the_first_read(place):
    path, cache = place
    array = FlatArray(path, INT64, 5, cache)
    with pytest.raises(DataError, match="array: deleted since"):
        array.read(0, 1)
    store_array(path, np.arange(5))
    assert array.read(3, 5).tolist() == [3, 4]


@pytest.mark.parametrize("size", [0, 39, 48])
def test_a_file_of_another_length_is_named(place, size):
    path, cache = place
    storage.write(path, bytes(size))
    with pytest.raises(DataError, match=rf"array: {size} bytes, but 5 elements of 8 bytes are 40"):
        FlatArray(path, INT64, 5, cache).read(0, 1)


def test_a_file_truncated_while_mapped_is_named_without_a_crash(tmp_path):
    array = store_array(str(tmp_path / "array"), np.arange(10_000))
    array.read(0, 1)
    os.truncate(array.path, 4096)
    for ask in (lambda: array.read(9_000, 9_001), lambda: array.take(np.array([9_000]))):
        with pytest.raises(DataError, match="array: 4096 bytes, but 10000 elements"):
            ask()


def flip(path: str, byte: int) -> None:
    data = bytearray(storage.read(path))
    data[byte] ^= 1
    storage.write(path, bytes(data))


ASKED = {
    "read": lambda array: array.read(5_000, 5_001),
    "take": lambda array: array.take(np.array([9_000, 5_000, 1])),
    "search": lambda array: array.search(ASCENDING[5_000:5_001]),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_changed_block_is_named_by_any_read(place, ask):
    path, cache = place
    array = store_array(path, ASCENDING, cache)
    flip(path, 8 * 5_000)
    block = 8 * 5_000 // SUMMED
    with pytest.raises(DataError) as refused:
        ask(FlatArray(path, INT64, len(array), cache))
    assert str(refused.value) == (
        f"{path}: damaged: block {block} (bytes {block * SUMMED} to {(block + 1) * SUMMED}) "
        "does not match its checksum in array.sums; restore the file, or tokenize again"
    )
    assert array.read(0, SUMMED // 8).tolist() == ASCENDING[: SUMMED // 8].tolist()


def test_a_bit_that_flips_after_its_block_was_read_is_found_too(tmp_path):
    array = store_array(str(tmp_path / "a"), ASCENDING)
    array.read(0, len(array))
    with Path(array.path).open("r+b") as file:  # changes the file in place, under the map
        file.seek(3)
        file.write(b"\xff")
    with pytest.raises(DataError, match="a: damaged: block 0 "):
        array.read(7, 8)


@given(
    st.integers(0, len(ASCENDING) * 8 - 1), st.integers(0, 7), st.integers(0, len(ASCENDING) - 1)
)
def test_no_bit_that_flips_makes_a_search_find_another_place(tmp_path_factory, byte, bit, at):
    array = store_array(str(tmp_path_factory.mktemp("flat") / "a"), ASCENDING)
    data = bytearray(storage.read(array.path))
    data[byte] ^= 1 << bit
    storage.write(array.path, bytes(data))
    values = ASCENDING[[at, at // 2, 0]]
    try:
        found = array.search(values)
    except DataError as error:
        assert f"damaged: block {byte // SUMMED} " in str(error)
    else:
        assert found.tolist() == np.searchsorted(ASCENDING, values, "right").tolist()


def test_damage_to_the_copies_on_this_machine_is_mended_from_the_bucket(s3, tmp_path):
    cache = BlockCache(folder=str(tmp_path / "blocks"))
    array = store_array(f"{s3}/array", ASCENDING, cache)
    array.read(0, len(array))
    kept = [path for path in Path(tmp_path, "blocks").rglob("*") if path.is_file()]
    assert len(kept) == 4  # three blocks and one of checksums
    for path in kept:
        data = bytearray(path.read_bytes())
        data[2] ^= 1
        path.write_bytes(data)
    assert (array.read(0, len(array)) == ASCENDING).all()


def test_sums_that_are_gone_or_cut_off_are_named(place):
    path, cache = place
    array = store_array(path, ASCENDING, cache)
    storage.delete(path + SUMS)
    with pytest.raises(DataError, match=r"array\.sums: deleted since"):
        array.read(0, 1)
    storage.write(path + SUMS, bytes(4))
    with pytest.raises(DataError, match=r"array\.sums"):
        array.read(0, len(array))


def test_an_array_may_travel(place):
    path, cache = place
    array = store_array(path, np.arange(5), cache)
    array.read(0, 1)
    assert pickle.loads(pickle.dumps(array)).read(0, 5).tolist() == [0, 1, 2, 3, 4]


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_more_arrays_than_file_descriptors_are_read_in_any_order(tmp_path):
    """Open more maps than the limit of file descriptors, as each map holds one."""
    before = count_open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrays = [store_array(str(tmp_path / f"{n}"), np.array([n, n + 1])) for n in range(MAPS + 60)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + MAPS + 20, hard))
        for _ in range(2):
            assert [array.read(1, 2)[0] for array in arrays] == [n + 1 for n in range(MAPS + 60)]
            assert count_open_files() <= before + MAPS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_least_recently_read_array_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_arrays, "MAPS", 2)
    first, second, third = (store_array(str(tmp_path / n), np.arange(3)) for n in "abc")
    for array in (first, second, first, third):
        array.read(0, 1)
    for array in (first, second, third):
        Path(array.path).unlink()
    assert first.read(0, 1).tolist() == [0]  # still mapped
    with pytest.raises(DataError, match="deleted"):
        second.read(0, 1)


def count_descriptors(path: Path) -> int:
    """Count this process's descriptors of one file, as others may come and go."""
    held = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            held += descriptor.readlink() == path
    return held


@pytest.mark.slow
def test_an_unreferenced_array_closes_its_file(tmp_path):
    path = tmp_path / "a"
    array = store_array(str(path), np.arange(3))
    view = array.read(0, 3)
    assert count_descriptors(path) == 1
    del array
    gc.collect()
    assert view.tolist() == [0, 1, 2]  # a copy, which needs no map
    del view
    gc.collect()
    assert count_descriptors(path) == 0
