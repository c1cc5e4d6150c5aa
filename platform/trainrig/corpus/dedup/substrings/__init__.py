"""Removal of repeated substrings, except for their first occurrence.

The method is that of Lee et al. 2021 (arXiv:2107.06499, section 4.1). A window is `min_bytes` bytes
long. It is a repeat if the same bytes occur in a document earlier in the keep order, or earlier in
the same document without overlap. The union of all repeats is removed: every span of at least
`min_bytes` that occurred before, and nothing else.

There are five phases. Each is a pure function of texts and files, so any number of workers can
share it:

1. `count_anchors`, for each split: count content-defined positions, one per run of windows.
2. `find_repeated_anchors`, for each range of keys: find those that occur more than once.
3. `gather_pieces`, for each split: collect the bytes around these, by partition.
4. `find_repeats`, for each partition: find repeated windows with a suffix array.
5. `cut_substrings`, for each split: compute the spans to remove from its texts.
   `read_repeated_texts` then lists the texts removed most often.

The first two phases only save work: suffix arrays are built for just the part of the corpus that
may repeat. The number of splits, ranges, partitions and arrays does not change the result.
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
