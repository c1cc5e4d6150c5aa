"""Removes captions that a gallery repeats, as a heading or beside a thumbnail."""

import dataclasses
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.block_model.blocks import (
    CHARACTERS,
    H1,
    H4,
    ITEM,
    KIND,
    LINK_CHARACTERS,
    PARAGRAPH,
    TEXT,
    WORDS,
)
from trainrig.corpus.extract.verdict import ScoredBlocks

_LEAST_WORDS: Final = 5  # shorter lines may be repeated for other reasons


def remove_thumbnails(judged: ScoredBlocks) -> ScoredBlocks:
    """Return `judged` without thumbnail captions and headings that a kept line repeats in full.

    A thumbnail is a list item or a link, and the line that repeats its caption may be anywhere on
    the page; a heading counts only if the next kept line repeats it. No text is lost, as the line
    stays. Lines of ordinary text may repeat each other, as refrains do.
    """
    numbers = judged.blocks.numbers
    kept = judged.kept
    kind = numbers[:, KIND]
    characters = numbers[:, CHARACTERS]
    thumbnail = (kind == ITEM) | (numbers[:, LINK_CHARACTERS] >= characters)
    text = kept & ~thumbnail & ((kind == TEXT) | (kind == PARAGRAPH))
    again = kept & thumbnail & (numbers[:, WORDS] >= _LEAST_WORDS)
    again &= np.isin(judged.blocks.digests, judged.blocks.digests[text])
    again |= _find_repeated_headings(judged)
    return (
        dataclasses.replace(judged, odds=np.where(again, -1, judged.odds))
        if again.any()
        else judged
    )


def _find_repeated_headings(judged: ScoredBlocks) -> NDArray[np.bool_]:
    """Mark kept headings whose words the next kept line repeats."""
    numbers = judged.blocks.numbers
    heading = (numbers[:, KIND] >= H1) & (numbers[:, KIND] <= H4)
    again = np.zeros(len(numbers), np.bool_)
    kept = np.flatnonzero(judged.kept)
    first = kept[:-1]
    second = kept[1:]
    again[first] = (
        heading[first]
        & ~heading[second]
        & (numbers[first, WORDS] >= _LEAST_WORDS)
        & (judged.blocks.digests[first] == judged.blocks.digests[second])
    )
    return again
