"""The first two phases: the anchors of a split's texts, counted, and those that come again."""

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
    """Phase 1: count the anchors of a split, whose texts come in batches, to `path`.

    Memory: a batch, three times, and a third of the bytes of the split. Returns the `bytes` of the
    texts and the number of `distinct` anchors, which is that of the records.
    """
    counted = [np.empty(0, ANCHOR)]
    size = 0
    for texts in batches:
        data = encode_texts(texts)
        size += len(data.data)
        anchors = find_anchors(data, settings.min_bytes)
        records = np.empty(len(anchors.keys_A), ANCHOR)
        records["key"], records["count"] = anchors.keys_A, anchors.counts_A
        counted.append(key_file.merge_records(records))
    found = key_file.merge_records(np.concatenate(counted))
    key_file.save(path, found)
    return {"bytes": size, "distinct": len(found)}


def find_repeated_anchors(paths: Sequence[str], part: int, parts: int, path: str) -> dict[str, int]:
    """Phase 2: which anchors come more than once, in range `part` of the keys, to `path`.

    `paths` are those of phase 1, of all splits. Returns how many are `repeated`, and how often
    they are there in all (`copies`): `partitions_for` goes by that.
    """
    found = key_file.merge_records(key_file.load(paths, ANCHOR, part, parts))
    repeated = found[found["count"] > 1]
    key_file.save(path, repeated)
    return {"repeated": len(repeated), "copies": int(repeated["count"].sum())}


def choose_anchor_range_count(distinct: int, memory: int) -> int:
    """Into how many ranges to cut so many `distinct` anchors of all splits, for bytes of memory."""
    return key_file.choose_part_count(distinct, ANCHOR, memory)
