"""The text of single blocks, and of a selection of blocks."""

import html
import re

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.block_model.blocks import (
    CODE,
    GAP,
    ITEM,
    KIND,
    LIST_DEPTH,
    OPENS,
    ROW,
    PageBlocks,
)

_TAG = re.compile(r"""<(?:[^>"']++|"[^"]*+"|'[^']*+')*+>""")


_BETWEEN = "\0"  # separates blocks; no page contains it


def extract_lines(page: bytes, blocks: PageBlocks) -> list[str]:
    """Return the text of each block, without tags and entities."""
    return _clean_lines(page, blocks.spans, blocks.numbers[:, KIND])


def format_blocks(page: bytes, blocks: PageBlocks, kept: NDArray[np.bool_], bullets: bool) -> str:
    """Join the kept blocks' lines, with a blank line where the page had one between them."""
    lines = iter(_clean_lines(page, blocks.spans[kept], blocks.numbers[kept, KIND]))
    parts: list[str] = []
    gap = False
    rows = blocks.numbers[:, (KIND, GAP, LIST_DEPTH, OPENS)].tolist()
    for keep, (kind, blank, depth, opens) in zip(kept.tolist(), rows, strict=True):
        gap = gap or blank > 0
        line = next(lines) if keep else ""
        if not line:
            continue
        if bullets and kind == ITEM and opens:
            line = "  " * (depth - 1) + "- " + line
        if parts:
            parts.append("\n\n" if gap else "\n")
        parts.append(line)
        gap = False
    return "".join(parts)


def _clean_lines(page: bytes, spans: NDArray[np.int64], kinds: NDArray[np.int32]) -> list[str]:
    """Return the text at each of `spans`, all in one pass, as each regex call has a fixed cost."""
    if not len(spans):
        return []
    cuttings = _BETWEEN.encode().join(page[start:end] for start, end in spans.tolist())
    text = cuttings.decode("utf-8", "replace")
    if "<" in text:
        text = _TAG.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    lines = []
    for kind, line in zip(kinds.tolist(), text.split(_BETWEEN), strict=True):
        if kind == CODE:
            lines.append(line.strip("\n"))
        else:
            lines.append(line.strip() if kind == ROW else " ".join(line.split()))
    return lines
