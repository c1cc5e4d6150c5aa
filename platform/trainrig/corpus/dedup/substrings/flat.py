"""Texts as bytes, one after another, and parts of them. D documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil


@dataclass(frozen=True)
class Bytes:
    """Texts in UTF-8, one after another."""

    data: NDArray[np.uint8]
    starts_D1: NDArray[np.int64]  # where each starts; last, the end

    @classmethod
    def concatenate(cls, parts: Sequence["Bytes"]) -> "Bytes":
        """Those of all parts, one after the other."""
        lengths = [np.zeros(1, np.int64), *(np.diff(part.starts_D1) for part in parts)]
        data = [np.empty(0, np.uint8), *(part.data for part in parts)]
        return cls(np.concatenate(data), np.cumsum(np.concatenate(lengths)))


def encode_texts(texts: Sequence[str]) -> Bytes:
    """`texts` as bytes. Lone surrogates are three bytes each, as any such character."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=starts[1:])
    return Bytes(np.frombuffer(b"".join(encoded), np.uint8), starts)


@compile_nogil
def copy_spans(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The spans of `data`, one after the other."""
    found = np.empty((ends - begins).sum(), np.uint8)
    place = 0
    for span in range(len(begins)):
        for at in range(begins[span], ends[span]):
            found[place] = data[at]
            place += 1
    return found
