import errno
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.shards.block_cache import BLOCK, WAYS, BlockCache

SMALLEST = WAYS * BLOCK
DATA = np.random.default_rng(0).integers(0, 256, 6 * BLOCK + 100, dtype=np.uint8).tobytes()


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(folder=str(tmp_path / "blocks"), bytes=SMALLEST)


@pytest.fixture
def gets(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Return counts of the requests for each range of an object, keyed by its first byte."""
    counted: Counter[tuple[str, int]] = Counter()
    read_range = storage.read_range

    def counting(path: str, begin: int, end: int) -> bytes:
        counted[path, begin] += 1
        return read_range(path, begin, end)

    monkeypatch.setattr(storage, "read_range", counting)
    return counted


def write_object(path: str, data: bytes = DATA) -> tuple[str, str]:
    storage.write(path, data)
    return path, storage.compute_content_key(path)


def list_cached(cache: BlockCache) -> list[Path]:
    return [path for path in Path(cache.folder or "").rglob("*") if path.is_file()]


def test_cached_bytes_equal_the_object(s3, cache):
    at = write_object(f"{s3}/a")
    edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, len(DATA)]
    for begin in edges:
        for end in edges:
            if begin < end:
                assert cache.read(*at, begin, end) == DATA[begin:end]


def test_a_block_is_fetched_once(s3, cache, gets):
    at = write_object(f"{s3}/a")
    dice = np.random.default_rng(1)
    for begin in dice.integers(0, len(DATA) - 16_384, 300).tolist():
        cache.read(*at, begin, begin + 16_384)
    assert gets.total() <= 7 and set(gets.values()) == {1}


def test_a_window_costs_a_get_or_two(s3, cache, gets):
    at = write_object(f"{s3}/a")
    cache.read(*at, 10, 10 + 16_384)
    assert gets.total() == 1
    cache.read(*at, 2 * BLOCK - 8_192, 2 * BLOCK + 8_192)  # across the boundary of two blocks
    assert gets.total() == 3


def test_the_bound_is_kept_and_evicted_blocks_are_fetched_again(s3, cache, gets):
    names = [write_object(f"{s3}/{number}", DATA) for number in range(6)]
    for _ in range(2):
        for at in names:
            assert cache.read(*at, 0, len(DATA)) == DATA
            assert sum(path.stat().st_size for path in list_cached(cache)) <= SMALLEST
    assert len(list_cached(cache)) == WAYS
    assert gets.total() > 6 * 7


def test_the_block_used_longest_ago_makes_room(s3, cache, gets):
    at = write_object(f"{s3}/a", bytes(WAYS * BLOCK))
    other = write_object(f"{s3}/b")
    for number in range(WAYS):
        cache.read(*at, number * BLOCK, number * BLOCK + 1)
    # Ages are set by hand, as a file system's clock may tick slowly.
    first, second = (cache._find_path(*at, number) for number in (0, 1))
    os.utime(first, ns=(0, 0))
    os.utime(second, ns=(1, 1))
    cache.read(*at, 5, 9)  # marks the first block as used again
    cache.read(*other, 0, 1)
    assert first.exists() and not second.exists()


def test_a_changed_object_has_other_blocks(s3, cache):
    before = write_object(f"{s3}/a")
    assert cache.read(*before, 0, 100) == DATA[:100]
    after = write_object(f"{s3}/a", DATA[::-1])
    assert cache.read(*after, 0, 100) == DATA[::-1][:100]


def test_a_torn_or_vanished_block_is_fetched_again(s3, cache, gets):
    at = write_object(f"{s3}/a")
    cache.read(*at, 0, 10)
    (block,) = list_cached(cache)
    block.write_bytes(DATA[:50])  # a power failure may leave a torn block
    assert cache.read(*at, 0, 100) == DATA[:100]
    block.unlink()
    assert cache.read(*at, 0, 100) == DATA[:100]
    assert gets.total() == 3


def test_an_object_gone_or_changed_meanwhile_is_named(s3, cache):
    at = write_object(f"{s3}/a", DATA[:1000])
    storage.write(at[0], DATA[:900])
    with pytest.raises(DataError, match=r"a: 900 bytes.*byte 0, but 1000 when"):
        cache.read(*at, 0, 10)
    storage.delete(at[0])
    with pytest.raises(DataError, match="a: deleted since it was opened"):
        cache.read(*at, 0, 10)


def test_reading_continues_on_a_full_disk(s3, cache, gets, monkeypatch, caplog):
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    at = write_object(f"{s3}/a")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        for _ in range(2):
            assert cache.read(*at, 0, 10) == DATA[:10]
    assert gets.total() == 2 and list_cached(cache) == []
    assert "cannot be cached (No space left on device); each read" in caplog.text
    assert len(caplog.records) == 1  # logged once, not for every block


def test_a_folder_that_cannot_be_made_is_read_past(s3, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    blocked = BlockCache(folder=str(tmp_path / "file"))
    assert blocked.read(*write_object(f"{s3}/a"), 0, 10) == DATA[:10]
    assert "cannot be cached" in caplog.text


def test_the_default_folder_is_this_users_below_the_temporary_one(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    BlockCache().read(*write_object(f"{s3}/a"), 0, 10)
    assert [path.name for path in tmp_path.iterdir()] == [f"trainrig-blocks-{os.getuid()}"]


READ_MUCH = """
import json, sys
import numpy as np
from trainrig.tokens.shards.block_cache import BLOCK, BlockCache

settings, names, size, seed = json.loads(sys.argv[1])
data = open(sys.argv[2], "rb").read()
cache = BlockCache(**settings)
dice = np.random.default_rng(seed)
wrong = 0
for _ in range(150):
    at = names[dice.integers(len(names))]
    begin = int(dice.integers(0, size - 1))
    end = min(size, begin + int(dice.integers(1, 2 * BLOCK)))
    wrong += cache.read(*at, begin, end) != data[begin:end]
print(wrong)
"""


@pytest.mark.slow
def test_processes_share_a_folder_that_is_too_small_for_them(s3, cache, tmp_path):
    """Let each process evict blocks that the other has just written or is about to read."""
    names = [write_object(f"{s3}/{number}") for number in range(4)]
    (tmp_path / "data").write_bytes(DATA)
    readers = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", READ_MUCH),
                json.dumps([cache.model_dump(), names, len(DATA), seed]),
                str(tmp_path / "data"),
            ],
            stdout=subprocess.PIPE,
        )
        for seed in range(2)
    ]
    wrong = [int(reader.communicate(timeout=300)[0]) for reader in readers]
    assert wrong == [0, 0]
    # Each process may write one block beyond the bound while the other does.
    assert len(list_cached(cache)) <= WAYS + 1
    assert not [path for path in list_cached(cache) if path.name.startswith(".")]
