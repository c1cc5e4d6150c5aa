"""Captions that a gallery has twice: under the picture, and in the list of its thumbnails."""

import dataclasses
from typing import Final

import numpy as np

from trainrig.corpus.extract.block_model.blocks import (
    CHARACTERS,
    ITEM,
    KIND,
    LINK_CHARACTERS,
    PARAGRAPH,
    TEXT,
    WORDS,
)
from trainrig.corpus.extract.verdict import ScoredBlocks

_LEAST_WORDS: Final = 5  # shorter lines are repeated for many reasons


def without_thumbnails(judged: ScoredBlocks) -> ScoredBlocks:
    """`judged` without list items and links whose words, all of them, are also a kept line of text.

    Nothing is lost: the line of text stays. Lines of text may repeat each other, as refrains do.
    """
    numbers, kept = judged.blocks.numbers, judged.kept
    kind, characters = numbers[:, KIND], numbers[:, CHARACTERS]
    thumbnail = (kind == ITEM) | (numbers[:, LINK_CHARACTERS] >= characters)
    text = kept & ~thumbnail & ((kind == TEXT) | (kind == PARAGRAPH))
    again = kept & thumbnail & (numbers[:, WORDS] >= _LEAST_WORDS)
    again &= np.isin(judged.blocks.digests, judged.blocks.digests[text])
    return (
        dataclasses.replace(judged, odds=np.where(again, -1, judged.odds))
        if again.any()
        else judged
    )
