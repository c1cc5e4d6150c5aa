"""The first two phases: count the line keys of each split, then find those that are too
frequent overall.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup import key_file
from trainrig.corpus.dedup.lines.normal_form import NormalForm
from trainrig.corpus.dedup.lines.settings import CommonLines
from trainrig.corpus.dedup.lines.units import find_units
from trainrig.corpus.dedup.sliced_file import Records

Batch = tuple[Sequence[str], NDArray[np.int64]]
"""Texts, and the number of each document: its place in the keep order of the whole corpus."""

LINE = np.dtype([("key", "<u8"), ("count", "<i8"), ("first", "<i8")])  # first: lowest number


def count_lines(batches: Iterable[Batch], settings: CommonLines, path: str) -> dict[str, int]:
    """Phase 1: count the lines of a split, and write them to `path`.

    Memory: a batch, and 24 bytes for each line that differs, twice. Returns `lines` that were
    long enough, and `distinct` ones: the number of records.
    """
    normal_form = NormalForm()
    counted = []
    lines = 0
    for texts, numbers in batches:
        units = find_units(texts, settings, normal_form)
        long = units.lengths_U >= settings.min_characters
        lines += int(long.sum())
        counted.append(_count_keys(units.keys_U[long], numbers[units.documents_U[long]], settings))
    merged = key_file.merge_records(np.concatenate([np.empty(0, LINE), *counted]))
    key_file.save(path, merged)
    return {"lines": lines, "distinct": len(merged)}


def find_common_lines(
    paths: Sequence[str], part: int, parts: int, settings: CommonLines, path: str
) -> dict[str, int]:
    """Phase 2: what all splits, at `paths`, have too often in range `part` of the keys, to `path`.

    Memory: twice the lines of the range (`choose_line_range_count` says how many ranges). Returns
    how many lines are `common`, and how many times they are there (`copies`), as settings.count
    has it.
    """
    merged = key_file.merge_records(key_file.load(paths, LINE, part, parts))
    common = merged[merged["count"] > settings.most]
    key_file.save(path, common)
    return {"common": len(common), "copies": int(common["count"].sum())}


def choose_line_range_count(distinct: int, memory: int) -> int:
    """Into how many ranges to cut so many `distinct` lines of all splits, for bytes of memory."""
    return key_file.choose_part_count(distinct, LINE, memory)


def _count_keys(
    keys: NDArray[np.uint64], numbers: NDArray[np.int64], settings: CommonLines
) -> Records:
    """Each key once, in order; a document's lines lie in one batch."""
    records = np.empty(len(keys), LINE)
    records["key"], records["count"], records["first"] = keys, 1, numbers
    if settings.count == "documents":
        order = np.lexsort((numbers, keys))
        keys, numbers = keys[order], numbers[order]
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
        records = records[order[fresh]]
    return key_file.merge_records(records)
