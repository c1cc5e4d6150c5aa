"""Cost of opening and reading token shards, which must not depend on their size.

The ids are sparse files: as many bytes to seek in, all zero, hardly any on disk. The ends of
documents are written in full: 400 MB for 100 GB of ids.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.sparse_shards import compute_zero_sums

from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums
from trainrig.tokens.shards.shard_files import ENDS, ENDS_DTYPE, HEAD, INDEX, TOKENS, ShardHeader

READER = Path(__file__).with_name("read_shards.py")
SIZES = {"1 MB": 10**6, "100 MB": 10**8, "100 GB": 10**11}  # bytes of ids, of two bytes each
DOCUMENT = 1_000  # tokens of each document
SHARD_BYTES = 2 * 10**9  # most bytes of ids in a shard
ROUNDS = 3
MEBIBYTE = 2**20


def write_shards(folder: Path, ids_bytes: int) -> Path:
    """Write shards of `ids_bytes` in all, with only the files that the format requires."""
    folder.mkdir()
    for number, begin in enumerate(range(0, ids_bytes, SHARD_BYTES)):
        tokens = min(SHARD_BYTES, ids_bytes - begin) // 2
        documents = tokens // DOCUMENT
        name = str(folder / f"documents-{number:05d}")
        Path(name + TOKENS).touch()
        os.truncate(name + TOKENS, 2 * tokens)
        ends = np.arange(1, documents + 1, dtype=ENDS_DTYPE) * DOCUMENT
        Path(name + ENDS).write_bytes(ends.tobytes())
        Path(name + TOKENS + SUMS).write_bytes(compute_zero_sums(2 * tokens))
        Path(name + ENDS + SUMS).write_bytes(compute_block_sums([ends.tobytes()]))
        Path(name + INDEX).touch()
        head = ShardHeader(
            vocabulary=50_000,
            tokenizer="none",
            documents=documents,
            tokens=tokens,
            tokens_sha256="",
            ends_sha256="",
            index_bytes=0,
            runs=(("web", documents, tokens),),
        )
        Path(name + HEAD).write_bytes(head.encode())
    return folder


def measure_reader(folder: Path) -> dict[str, float]:
    """Return the measurements of a separate process."""
    done = subprocess.run(
        [sys.executable, str(READER), str(folder)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.bench
def test_reading_costs_the_same_at_any_size(tmp_path):
    folders = {name: write_shards(tmp_path / name, size) for name, size in SIZES.items()}
    rounds = [
        {name: measure_reader(folder) for name, folder in folders.items()} for _ in range(ROUNDS)
    ]
    best = {
        name: {key: min(figures[name][key] for figures in rounds) for key in rounds[0][name]}
        for name in SIZES
    }
    for name, measured in best.items():
        print(json.dumps({"benchmark": f"token shards of {name}", **measured}))
    small = best["1 MB"]
    large = best["100 GB"]
    # 50 shards are opened instead of one, at a millisecond or two each, whatever their size.
    assert large["open_cpu_ms"] < small["open_cpu_ms"] + 50 * 5
    # A page that was never touched costs a page fault. Apart from that, a large file costs no more.
    assert large["window_cpu_us"] < 3 * small["window_cpu_us"] + 20
    assert large["document_cpu_us"] < 3 * small["document_cpu_us"] + 20
    assert large["anonymous_bytes"] < small["anonymous_bytes"] + 10 * MEBIBYTE
    assert large["anonymous_bytes"] < 200 * MEBIBYTE
