"""The text of a page's blocks, as plain text or as Markdown.

Plain text has a block a line, or a blank line between blocks where the page has one; cells of a row
are separated by tabs, and formulas are in TeX. Markdown adds the signs of headings, fenced code,
rows with pipes, and dollar signs around formulas.
"""

import re
from typing import Final, Literal

import numpy as np

from trainrig.corpus.array_types import Bools
from trainrig.corpus.extract import page_blocks
from trainrig.corpus.page_walk.page_text import (
    CODE,
    H1,
    H6,
    MATH_BLOCK,
    MATH_END,
    MATH_START,
    ROW,
)

Format = Literal["text", "markdown"]

_BLOCK_SEPARATOR: Final = "\0"  # separates blocks; no page contains it
_SIGNS: Final = {MATH_START: None, MATH_BLOCK: None, MATH_END: None}
_FORMULA = re.compile(f"([{chr(MATH_START)}{chr(MATH_BLOCK)}])([^{chr(MATH_END)}]*){chr(MATH_END)}")
_FENCES = re.compile("`{3,}")
_BULLET: Final = 1  # marker of a list item without a number


def extract_lines(blocks: page_blocks.PageBlocks) -> list[str]:
    """Return the text of each block."""
    return [_remove_signs(line) for line in _split_lines(blocks)]


def _split_lines(blocks: page_blocks.PageBlocks) -> list[str]:
    lines = bytes(blocks.text).decode("utf-8", "replace").split(_BLOCK_SEPARATOR)
    return [line.strip("\n") for line in lines[: len(blocks.numbers)]]


def format_blocks(
    blocks: page_blocks.PageBlocks, kept: Bools, bullets: bool, as_format: Format
) -> str:
    """Join the kept blocks, with a blank line where the page had one between them."""
    places = np.flatnonzero(kept)
    spans = blocks.spans[places].tolist()
    columns = (page_blocks.KIND, page_blocks.LIST_DEPTH, page_blocks.MARKER)
    rows = blocks.numbers[places[:, None], columns].tolist()
    markers = blocks.markers[places].tolist()
    # Blocks with a blank line before them, up to each kept block.
    blanks = np.cumsum(blocks.numbers[:, page_blocks.GAP] > 0)[places].tolist()
    text_of_page = blocks.text.tobytes()
    parts: list[str] = []
    last = -1  # kind of the last block kept
    before = 0  # blank lines before the last block kept
    for number, (start, end) in enumerate(spans):
        kind, depth, marker = rows[number]
        gap = blanks[number] > before
        before = blanks[number]
        line = text_of_page[start:end].decode("utf-8", "replace").strip("\n")
        if as_format == "markdown":
            line = _format_as_markdown(line, kind)
            if kind == ROW and (last != ROW or gap):
                line += "\n" + "| --- " * (line.count(" | ") + 1) + "|"
            # Markdown joins lines without a blank line between them, except in lists and tables.
            gap = gap or not (kind == last == ROW or marker)
        if bullets and marker:
            indent = ("    " if as_format == "markdown" else "  ") * (depth - 1)
            line = f"{indent}{'-' if marker == _BULLET else f'{markers[number]}.'} {line}"
        if parts:
            parts.append("\n\n" if gap else "\n")
        parts.append(line)
        last = kind
    text = "".join(parts)
    return text if as_format == "markdown" else _remove_signs(text)


def _remove_signs(text: str) -> str:
    """Return `text` without the characters around formulas."""
    # Most texts have none, and `translate` is slow.
    return text.translate(_SIGNS) if chr(MATH_END) in text else text


def _format_as_markdown(line: str, kind: int) -> str:
    """Return a block as Markdown, without the marker of a list item."""
    if kind == CODE:
        longest = max(map(len, _FENCES.findall(line)), default=2)
        fence = "`" * (longest + 1)
        return f"{fence}\n{line}\n{fence}"
    if kind == ROW:  # a bar in a formula would end the cell
        line = _FORMULA.sub(lambda found: found.group().replace("|", r"\vert "), line)
    line = _FORMULA.sub(_write_formula, line)
    if kind == ROW:
        return "| " + " | ".join(line.replace("|", "\\|").split("\t")) + " |"
    if H1 <= kind <= H6:
        return f"{'#' * (kind - H1 + 1)} {line}"
    return line


def _write_formula(found: re.Match[str]) -> str:
    sign = "$" if ord(found.group(1)) == MATH_START else "$$"
    return f"{sign}{found.group(2)}{sign}"
