"""Exact substrings: of the spans of at least so many bytes that occur more than once, all but the
first are cut (Lee et al. 2021, arXiv:2107.06499, section 4.1).

A window is min_bytes long; it is a repeat if the same bytes are in a document earlier in the keep
order, or earlier in its own without overlap. What is cut are the repeats, united: every span of
min_bytes or more that was there before, and nothing else.

Five phases, each pure over texts and files, so that any number of workers can do them:

1. `count_anchors`, of each split: places that the content chooses, one for each run of windows.
2. `find_repeated_anchors`, of each range of keys: which come more than once.
3. `gather_pieces`, of each split: the bytes about these, by partition.
4. `find_repeats`, of each partition: which windows were there before, by a suffix array.
5. `cut_substrings`, of each split: the spans of its texts; `read_repeated_texts` tells of all.

The first two only save work: what a suffix array is made of is the part of the corpus that may
repeat. Into how many splits, ranges, partitions and arrays the work is cut changes nothing.
"""

from trainrig.corpus.dedup.substrings.counting import (
    choose_anchor_range_count,
    count_anchors,
    find_repeated_anchors,
)
from trainrig.corpus.dedup.substrings.pieces import choose_partition_count, gather_pieces
from trainrig.corpus.dedup.substrings.repeats import find_repeats
from trainrig.corpus.dedup.substrings.report import RepeatedText, read_repeated_texts
from trainrig.corpus.dedup.substrings.settings import EXACT_SUBSTRINGS, ExactSubstrings
from trainrig.corpus.dedup.substrings.span_removal import cut_substrings

__all__ = [
    "EXACT_SUBSTRINGS",
    "ExactSubstrings",
    "RepeatedText",
    "choose_anchor_range_count",
    "choose_partition_count",
    "count_anchors",
    "cut_substrings",
    "find_repeated_anchors",
    "find_repeats",
    "gather_pieces",
    "read_repeated_texts",
]
