"""Texts concatenated as one array of bytes, for compiled loops."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.signatures.character_classes import CAPITALS

_STRING = pa.large_string()
_NONE = pa.array([], _STRING)
_CAPITALS = np.array([list(capital.encode()) for capital in CAPITALS], np.uint8)  # 2 bytes each


class NormalisedTexts(NamedTuple):
    """Texts in UTF-8, concatenated, that compiled loops can lower-case character by character.

    Texts with one of `CAPITALS`, whose lower case needs more than a table, are in lower case
    already. All others are unchanged.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # [texts + 1] start of each text; the last entry is the end of all

    @classmethod
    def of(cls, texts: Sequence[str]) -> "NormalisedTexts":
        """Convert strings, which may contain lone surrogates."""
        encoded = [_lower_if_special(text).encode("utf-8", "surrogatepass") for text in texts]
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=starts[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), starts)

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray) -> "NormalisedTexts":
        """Convert a column of strings, without a copy if it is one chunk of large strings.

        A null is an empty text. Raises pyarrow.ArrowInvalid if the data is not UTF-8.
        """
        chunks = column.cast(_STRING).fill_null("").chunks
        # Concatenating chunks copies them.
        strings = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [_NONE])
        strings.validate(full=True)
        texts = _read_buffers(strings)
        found = np.zeros(len(strings), np.bool_)
        _find_special_capitals(texts.data, texts.starts, _CAPITALS, found)
        if not found.any():
            return texts
        mask = pa.array(found)
        lowered = [text.lower() for text in strings.filter(mask).to_pylist()]
        return _read_buffers(pc.replace_with_mask(strings, mask, pa.array(lowered, _STRING)))

    def slice_texts(self, first: int, end: int) -> "NormalisedTexts":
        """Return the texts `first` up to `end`."""
        return NormalisedTexts(self.data, self.starts[first : end + 1])

    def find_blocks(self, size: int) -> list[tuple[int, int]]:
        """Return the bounds of runs of texts; each run has at most `size` bytes, or one text."""
        cuts = [0]
        while cuts[-1] < len(self.starts) - 1:
            first = cuts[-1]
            full = int(np.searchsorted(self.starts, self.starts[first] + size, side="right")) - 1
            cuts.append(max(first + 1, full))
        return list(itertools.pairwise(cuts))


def _lower_if_special(text: str) -> str:
    return text.lower() if any(capital in text for capital in CAPITALS) else text


def _read_buffers(strings: pa.LargeStringArray) -> NormalisedTexts:
    if not len(strings):
        return NormalisedTexts.of([])
    _, starts, data = strings.buffers()
    offsets = np.frombuffer(starts, np.int64)[strings.offset :][: len(strings) + 1]
    return NormalisedTexts(np.frombuffer(data or b"", np.uint8), offsets.copy())


@compile_nogil
def _find_special_capitals(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    capitals: NDArray[np.uint8],
    found: NDArray[np.bool_],
) -> None:
    """Mark in `found` the texts that contain one of `capitals`, of two bytes of UTF-8 each."""
    for text in range(len(found)):
        # The compiler vectorises the loop over a view whose positions start at 0.
        encoded = data[starts[text] : starts[text + 1]]
        has_capital = False  # a bool, because numba would widen a number to 8 bytes and be slower
        for capital in capitals:
            first = capital[0]
            second = capital[1]
            for place in range(len(encoded) - 1):
                has_capital |= (encoded[place] == first) & (encoded[place + 1] == second)
        found[text] = has_capital
