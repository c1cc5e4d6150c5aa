"""Texts as concatenated bytes, and spans of them.

Array suffix: D is the number of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil


@dataclass(frozen=True)
class Bytes:
    """Texts in UTF-8, concatenated."""

    data: NDArray[np.uint8]
    starts_D1: NDArray[np.int64]  # start of each text; the last entry is the end

    @classmethod
    def concatenate(cls, parts: Sequence["Bytes"]) -> "Bytes":
        """Concatenate the texts of several parts."""
        lengths = [np.zeros(1, np.int64), *(np.diff(part.starts_D1) for part in parts)]
        data = [np.empty(0, np.uint8), *(part.data for part in parts)]
        return cls(np.concatenate(data), np.cumsum(np.concatenate(lengths)))


def encode_texts(texts: Sequence[str]) -> Bytes:
    """Encode `texts` as concatenated UTF-8; a lone surrogate becomes three bytes."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=starts[1:])
    return Bytes(np.frombuffer(b"".join(encoded), np.uint8), starts)


@compile_nogil
def copy_spans(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the spans of `data`, concatenated."""
    found = np.empty((ends - begins).sum(), np.uint8)
    place = 0
    for span in range(len(begins)):
        for at in range(begins[span], ends[span]):
            found[place] = data[at]
            place += 1
    return found
