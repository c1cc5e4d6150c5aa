"""The text of blocks, one by one and together."""

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
    Blocks,
)

_TAG = re.compile(r"""<(?:[^>"']|"[^"]*"|'[^']*')*>""")


def line_of(page: bytes, start: int, end: int, kind: int) -> str:
    """The text of the block at these bytes, without tags and entities."""
    line = page[start:end].decode("utf-8", "replace")
    if "<" in line:
        line = _TAG.sub("", line)
    if "&" in line:
        line = html.unescape(line)
    if kind == CODE:
        return line.strip("\n")
    return line.strip() if kind == ROW else " ".join(line.split())


def lines_of(page: bytes, blocks: Blocks) -> list[str]:
    """The text of each block."""
    kinds = blocks.numbers[:, KIND].tolist()
    places = blocks.spans.tolist()
    return [
        line_of(page, start, end, kind) for (start, end), kind in zip(places, kinds, strict=True)
    ]


def text_of(page: bytes, blocks: Blocks, kept: NDArray[np.bool_], bullets: bool) -> str:
    """Lines of text in order, with a blank line wherever the page had one between two of them."""
    parts: list[str] = []
    gap = False
    rows = blocks.numbers[:, (KIND, GAP, LIST_DEPTH, OPENS)].tolist()
    for keep, (start, end), (kind, blank, depth, opens) in zip(
        kept.tolist(), blocks.spans.tolist(), rows, strict=True
    ):
        gap = gap or blank > 0
        line = line_of(page, start, end, kind) if keep else ""
        if not line:
            continue
        if bullets and kind == ITEM and opens:
            line = "  " * (depth - 1) + "- " + line
        if parts:
            parts.append("\n\n" if gap else "\n")
        parts.append(line)
        gap = False
    return "".join(parts)
