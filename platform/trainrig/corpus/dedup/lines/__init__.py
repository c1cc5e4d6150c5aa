"""Lines, or paragraphs, that many documents of the corpus have: found, and cut out of them.

Three phases, each pure over texts and files, so that any number of workers can do them:

1. `count_lines`, of each split: a 64-bit key of each line, counted; sorted, on storage.
2. `find_common_lines`, of each range of keys: which of them the corpus has too often.
3. `cut_lines`, of each split: where these lie in its texts.

The settings are CCNet's (Wenzek et al. 2019, arXiv:1911.00359, section 3.1: 64 bits of a hash of
each normalised paragraph, all copies removed) but for the number, which is Llama 3's: lines seen
more than six times go (arXiv:2407.21783, section 3.1.1).
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
