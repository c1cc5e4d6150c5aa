"""The plan for a shuffled order of documents, made once when they are tokenized.

The plan has two arrays with one entry for each place of the shuffled order, together 16 bytes: the
end of the document at that place in the shuffled stream of its source, and its start in the source.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.manifest import FileSum
from trainrig.tokens.packing.plan_files import Arrays, Entries, write_plan
from trainrig.tokens.permutation import Integers, permute_indices
from trainrig.tokens.shards.token_shards import TokenShards

NAME = "shuffle"
ARRAYS: Arrays = {
    "ends": np.dtype("<i8"),  # position in the shuffled stream
    "starts": np.dtype("<i8"),  # position in the source
}
CHUNK = 2**18  # documents processed at a time: 2 MiB of each array


def write_shuffle_plan(shards: TokenShards, seed: int) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Shuffle the documents of each source; return counts, and the sums of the plan's files.

    Document i goes to the place that a permutation of `seed`, the source's name and its number of
    documents assigns. Documents are numbered in the order of the shards.
    """

    def fill(paths: Mapping[str, Path]) -> Entries:
        counts = {source: shards.count_documents(source) for source in shards.sources}
        maps = {
            array: np.memmap(paths[array], dtype, "w+", shape=(sum(counts.values()),))
            for array, dtype in ARRAYS.items()
        }
        first = 0
        for source, count in counts.items():
            own = slice(first, first + count)
            _shuffle(shards, source, seed, maps["ends"][own], maps["starts"][own])
            first += count
        for written in maps.values():
            written.flush()
        return {source: dict.fromkeys(ARRAYS, count) for source, count in counts.items()}

    files = write_plan(shards, NAME, {"seed": seed}, ARRAYS, fill)
    documents = sum(shards.count_documents(source) for source in shards.sources)
    return {"documents": documents, "bytes": _sum_bytes(files)}, files


def _shuffle(shards: TokenShards, source: str, seed: int, ends: Integers, starts: Integers) -> None:
    """Fill the entries of one source.

    Shards are read sequentially, because they may be in a bucket. The plan is written in random
    order, because it is a local file until it is complete.
    """
    count = len(ends)
    for begin in range(0, count, CHUNK):
        past = min(count, begin + CHUNK)
        places = permute_indices(np.arange(begin, past), count, f"documents\n{seed}\n{source}")
        bounds = shards.find_document_starts(source, np.arange(begin, past + 1))
        starts[places] = bounds[:-1]
        ends[places] = np.diff(bounds)  # lengths; the next loop replaces them by ends
    total = 0
    for begin in range(0, count, CHUNK):
        chunk = ends[begin : begin + CHUNK]
        chunk[:] = total + np.cumsum(chunk)
        total = int(chunk[-1])


def _sum_bytes(files: Mapping[str, FileSum]) -> int:
    return sum(entry.bytes for entry in files.values())
