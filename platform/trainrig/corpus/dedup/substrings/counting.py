"""First two phases of substring removal: count each split's anchors, then find repeated ones."""

from collections.abc import Iterable, Sequence

import numpy as np

from trainrig.corpus.dedup import key_file
from trainrig.corpus.dedup.substrings.anchors import find_anchors
from trainrig.corpus.dedup.substrings.flat import encode_texts
from trainrig.corpus.dedup.substrings.settings import ExactSubstrings

ANCHOR = np.dtype([("key", "<u8"), ("count", "<i8")])


def count_anchors(
    batches: Iterable[Sequence[str]], settings: ExactSubstrings, path: str
) -> dict[str, int]:
    """Count the anchors of a split and write the counts to `path` (phase 1).

    It takes three times the memory of a batch, and a third of the bytes of the split. Returns the
    `bytes` of the texts, and the number of `distinct` anchors, which is the number of records.
    """
    counted = [np.empty(0, ANCHOR)]
    size = 0
    for texts in batches:
        data = encode_texts(texts)
        size += len(data.data)
        anchors = find_anchors(data, settings.min_bytes)
        records = np.empty(len(anchors.keys_A), ANCHOR)
        records["key"] = anchors.keys_A
        records["count"] = anchors.counts_A
        counted.append(key_file.merge_records(records))
    found = key_file.merge_records(np.concatenate(counted))
    key_file.save(path, found)
    return {"bytes": size, "distinct": len(found)}


def find_repeated_anchors(paths: Sequence[str], part: int, parts: int, path: str) -> dict[str, int]:
    """Find the anchors that occur more than once, in one range of keys, and write them (phase 2).

    The files of phase 1, of all splits, are at `paths`; range `part` of `parts` is read, and the
    result written to `path`. Returns the number of `repeated` anchors, and of all their `copies`,
    which `choose_partition_count` needs.
    """
    found = key_file.merge_records(key_file.load(paths, ANCHOR, part, parts))
    repeated = found[found["count"] > 1]
    key_file.save(path, repeated)
    return {"repeated": len(repeated), "copies": int(repeated["count"].sum())}


def choose_anchor_range_count(distinct: int, memory: int) -> int:
    """Return the number of key ranges for `distinct` anchors of all splits, in `memory` bytes."""
    return key_file.choose_part_count(distinct, ANCHOR, memory)
