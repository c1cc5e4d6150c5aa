"""First two phases of common-line removal: count line keys per split, then find common ones."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup import key_file
from trainrig.corpus.dedup.lines.normal_form import NormalForm
from trainrig.corpus.dedup.lines.settings import CommonLines
from trainrig.corpus.dedup.lines.units import find_units
from trainrig.corpus.dedup.sliced_file import Records

Batch = tuple[Sequence[str], NDArray[np.int64]]
"""Texts, and each document's number: its position in the keep order of the corpus."""

# `first` is the lowest document number
LINE = np.dtype([("key", "<u8"), ("count", "<i8"), ("first", "<i8")])


def count_lines(batches: Iterable[Batch], settings: CommonLines, path: str) -> dict[str, int]:
    """Count the lines of a split and write the counts to `path` (phase 1).

    It takes the memory of a batch, and 24 bytes for each different line, twice. Returns the number
    of `lines` that were long enough, and of `distinct` ones, which is the number of records.
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
    """Find the lines that all splits together have too often, in one range of keys (phase 2).

    The files of phase 1 are at `paths`; range `part` of `parts` is read, and the result written to
    `path`. It takes memory for twice the lines of the range (see `choose_line_range_count`).
    Returns the number of `common` lines, and of their `copies`, counted by `settings.count`.
    """
    merged = key_file.merge_records(key_file.load(paths, LINE, part, parts))
    common = merged[merged["count"] > settings.most]
    key_file.save(path, common)
    return {"common": len(common), "copies": int(common["count"].sum())}


def choose_line_range_count(distinct: int, memory: int) -> int:
    """Return the number of key ranges for `distinct` lines of all splits, given memory in bytes."""
    return key_file.choose_part_count(distinct, LINE, memory)


def _count_keys(
    keys: NDArray[np.uint64], numbers: NDArray[np.int64], settings: CommonLines
) -> Records:
    """Return one record per key, sorted.

    All lines of a document must be in the same call.
    """
    records = np.empty(len(keys), LINE)
    records["key"] = keys
    records["count"] = 1
    records["first"] = numbers
    if settings.count == "documents":
        order = np.lexsort((numbers, keys))
        keys = keys[order]
        numbers = numbers[order]
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
        records = records[order[fresh]]
    return key_file.merge_records(records)
