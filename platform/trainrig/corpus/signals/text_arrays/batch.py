"""Flat arrays of many texts, which compiled loops process."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import build_character_tables


class TextBatch(NamedTuple):
    """The characters of all texts, concatenated. Shapes: C characters, D texts."""

    codes_C: NDArray[np.uint32]  # code points
    classes_C: NDArray[np.uint16]  # flags of text_arrays/characters.py
    starts_D1: NDArray[np.int64]  # [D + 1] where each text starts; the last entry is C


def build_batch(texts: Sequence[str]) -> TextBatch:
    """Build the flat arrays of `texts`. Lone surrogates are characters without flags."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    classes = np.empty(len(codes), np.uint16)
    _classify_codes(codes, build_character_tables().classes, classes)
    return TextBatch(codes, classes, starts)


@compile_nogil
def _classify_codes(
    codes: NDArray[np.uint32], table: NDArray[np.uint16], classes: NDArray[np.uint16]
) -> None:
    # Indexing with numpy would first convert every code to 64 bits.
    for place in range(len(codes)):
        classes[place] = table[codes[place]]
