"""Rows of ids as a person reads them: where documents meet, and what is trained on.

A row is shown document by document, each piece under a line that names it. Tokens that are no
target stand between ‹ and ›, so that the view says the same without colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from trainrig.report import escape_invisible
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.encoding.encode import Encoder

COLOURS = ("cyan", "yellow", "green", "magenta")  # of neighbouring pieces, in turns
UNTRAINED = ("‹", "›")
BORDER = "·"  # between two tokens, where borders are asked for


@dataclass(frozen=True)
class RowPiece:
    """A stretch of one document in a row."""

    place: int  # of its first id in the row
    title: str


def count_padding(ids: NDArray[np.integer], encoder: Encoder) -> int:
    """How many ids at the end of a row are padding."""
    token = encoder.special_tokens.pad
    pad = token.id if token else None
    text = np.flatnonzero(ids != (-1 if pad is None else pad))
    return len(ids) - (int(text[-1]) + 1 if len(text) else 0)


def render_row(
    ids: NDArray[np.integer],
    targets: NDArray[np.integer],
    pieces: Sequence[RowPiece],
    encoder: Encoder,
    *,
    tokens: int | None = None,
    borders: bool = False,
) -> Text:
    """The row of `ids` [T] whose targets are `targets` [T]: at place t, the id to predict there.

    `tokens`: of each piece, at most so many of the first and of the last; None: all. `borders`:
    show where each token ends. What strangers wrote is shown with its control characters visible.
    """
    trained = np.concatenate(([False], targets[:-1] != IGNORE))
    unfilled = count_padding(ids, encoder)
    text = Text()
    ends = [piece.place for piece in pieces[1:]] + [len(ids) - unfilled]
    for number, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        untaught = int((~trained[piece.place : end]).sum())
        counted = f"{end - piece.place:,} tokens at {piece.place:,}"
        masked = f", {untaught:,} no target" if untaught else ""
        text.append(
            f"┃ {escape_invisible(piece.title)}: {counted}{masked}\n", style=f"bold {colour}"
        )
        for begin, past, left_out in _choose_ranges(piece.place, end, tokens):
            if left_out:
                text.append(f" … {left_out:,} tokens … ", style="dim")
            text.append_text(
                _render_piece(ids[begin:past], trained[begin:past], encoder, colour, borders)
            )
        text.append("\n")
    if unfilled:
        text.append(f"┃ {unfilled:,} of padding\n", style="bold")
    if targets[-1] != IGNORE:
        last = escape_invisible(encoder.decode([int(targets[-1])]))
        text.append(f"┃ last target: {last}\n", style="bold")
    return text


def _choose_ranges(begin: int, end: int, tokens: int | None) -> list[tuple[int, int, int]]:
    """The stretches to show, each with how many tokens are left out before it."""
    if tokens is None or end - begin <= 2 * tokens:
        return [(begin, end, 0)]
    return [(begin, begin + tokens, 0), (end - tokens, end, end - begin - 2 * tokens)]


def _render_piece(
    ids: NDArray[np.integer],
    trained: NDArray[np.bool_],
    encoder: Encoder,
    colour: str,
    borders: bool,
) -> Text:
    text = Text()
    for taught, run in groupby(zip(ids.tolist(), trained.tolist(), strict=True), lambda p: p[1]):
        numbers = [number for number, _ in run]
        # Together: a character of several tokens has no text token by token.
        shown = (
            BORDER.join(map(encoder.decode, ([n] for n in numbers)))
            if borders
            else (encoder.decode(numbers))
        )
        shown = escape_invisible(shown)
        if taught:
            text.append(shown, style=colour)
        else:
            text.append(shown.join(UNTRAINED), style=f"dim underline {colour}")
    return text
