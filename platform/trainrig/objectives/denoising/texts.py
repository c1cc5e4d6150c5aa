"""The texts of a micro-batch's rows: what next-token prediction would be trained on.

Shapes: N tokens of the text of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.objectives.denoising.noise_spans import Flags
from trainrig.tokens.batches import IGNORE, MicroBatch
from trainrig.tokens.permutation import Integers


@dataclass(frozen=True)
class RowText:
    """The text of one row: its targets, but for those that are not trained on."""

    ids: Integers  # [N]
    places: Integers  # [N] of each in the row; what a row ends with is at its length
    documents: Integers  # [N] the document of each, ascending from 1 in the row
    # [N] what no span may hold: a special token, and the first of a document that follows another
    # without one between.
    walls: Flags


def read_texts(micro: MicroBatch, special: Sequence[int], end: int) -> Iterator[RowText]:
    """The text of each row of `micro`. `special`: ids of special tokens; `end`: of that which ends
    a document."""
    length = micro.ids.shape[1]
    for row, targets in enumerate(micro.targets):
        at = np.flatnonzero(targets != IGNORE)
        ids, places = targets[at], at + 1
        begins = micro.pieces[micro.pieces[:, 0] == row, 1]
        documents = np.searchsorted(begins, places, side="right")
        if micro.ids[row, -1] == end:  # a row may end with another document's first id
            documents = documents + (places == length)
        walls = np.isin(ids, special)
        walls[1:] |= (documents[1:] != documents[:-1]) & ~walls[:-1]
        yield RowText(ids, places, documents, walls)
