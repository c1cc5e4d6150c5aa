"""Rendering of rows of token ids for people: where documents begin, and what is trained on.

A row is shown document by document, under a line with the document's name. Tokens that are not
targets are enclosed in ‹ and ›, so that the view can be read without colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from trainrig.report.number_formats import escape_invisible
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.tokenizers.encode import Encoder

COLOURS = ("cyan", "yellow", "green", "magenta")  # adjacent pieces use them in rotation
UNTRAINED = ("‹", "›")
BORDER = "·"  # between two tokens, if borders are shown


@dataclass(frozen=True)
class RowPiece:
    """The part of a document that is in a row."""

    place: int  # position of its first id in the row
    title: str


def count_padding(ids: NDArray[np.integer], encoder: Encoder) -> int:
    """Return the number of padding ids at the end of a row."""
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
    """Render the row of `ids` [T] with its targets [T], the id to predict at each position.

    `tokens` limits each piece to that many of its first and of its last tokens; None shows all.
    `borders` marks where each token ends. Control characters in the text are made visible, because
    the text comes from untrusted pages.
    """
    trained = np.concatenate(([False], targets[:-1] != IGNORE))
    unfilled = count_padding(ids, encoder)
    text = Text()
    ends = [piece.place for piece in pieces[1:]] + [len(ids) - unfilled]
    for number, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        untaught = int((~trained[piece.place : end]).sum())
        counted = f"{end - piece.place:,} tokens at {piece.place:,}"
        masked = f", {untaught:,} not trained on" if untaught else ""
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
        text.append(f"┃ {unfilled:,} tokens of padding\n", style="bold")
    if targets[-1] != IGNORE:
        last = escape_invisible(encoder.decode([int(targets[-1])]))
        text.append(f"┃ last target: {last}\n", style="bold")
    return text


def _choose_ranges(begin: int, end: int, tokens: int | None) -> list[tuple[int, int, int]]:
    """Return the ranges to show, as (begin, end, number of tokens left out before it)."""
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
        # Decoded together: a character of several tokens cannot be decoded token by token.
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
