"""Texts of a micro-batch's rows: the tokens that next-token prediction would train on.

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
    """The text of one row: its targets, without those that are not trained on."""

    ids: Integers  # [N]
    # [N] position of each id in the row; a row's last target is at the row's length
    places: Integers
    documents: Integers  # [N] document number of each id, ascending from 1 in the row
    # [N] whether a token should be in no span: special tokens, and the first token of a document
    # without a special token before it.
    walls: Flags


def read_texts(micro: MicroBatch, special: Sequence[int], end: int) -> Iterator[RowText]:
    """Yield the text of each row of `micro`.

    `special`: ids of special tokens. `end`: id of the token that ends a document.
    """
    length = micro.ids.shape[1]
    for row, targets in enumerate(micro.targets):
        at = np.flatnonzero(targets != IGNORE)
        ids = targets[at]
        places = at + 1
        begins = micro.pieces[micro.pieces[:, 0] == row, 1]
        documents = np.searchsorted(begins, places, side="right")
        # the row's last target may be the first id of another document
        if micro.ids[row, -1] == end:
            documents = documents + (places == length)
        walls = np.isin(ids, special)
        walls[1:] |= (documents[1:] != documents[:-1]) & ~walls[:-1]
        yield RowText(ids, places, documents, walls)
