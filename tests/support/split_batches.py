"""Documents of one split, and batches of them, for the passes over repeated text."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Split = list[tuple[int, str]]  # number in the keep order and text, of each document


def make_batches(split: Split, size: int) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    """Yield the texts and numbers of `size` documents at a time."""
    for start in range(0, len(split), size):
        some = split[start : start + size]
        yield [text for _, text in some], np.array([number for number, _ in some], np.int64)
