"""Removal of lines or paragraphs that occur in many documents of the corpus.

There are three phases. Each is a pure function of texts and files, so any number of workers can
share it:

1. `count_lines`, for each split: write the sorted 64-bit keys of its lines, with counts.
2. `find_common_lines`, for each range of keys: find those that the corpus has too often.
3. `cut_lines`, for each split: locate these lines in its texts.

The settings are those of CCNet (Wenzek et al. 2019, arXiv:1911.00359, section 3.1: 64 bits of a
hash of each normalised paragraph, all copies removed), except for the count, which is that of Llama
3: lines seen more than six times are removed (arXiv:2407.21783, section 3.1.1).
"""

from trainrig.corpus.dedup.lines.counting import (
    choose_line_range_count,
    count_lines,
    find_common_lines,
)
from trainrig.corpus.dedup.lines.settings import COMMON_LINES, CommonLines
from trainrig.corpus.dedup.lines.span_removal import cut_lines

__all__ = [
    "COMMON_LINES",
    "CommonLines",
    "choose_line_range_count",
    "count_lines",
    "cut_lines",
    "find_common_lines",
]
