"""The chunks of a batch: runs of characters between white space, which spaCy's rules split."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.batch import TextBatch
from trainrig.corpus.signals.text_arrays.characters import SPACE
from trainrig.corpus.signals.text_arrays.hashing import PRIME, SEED, mix_bits


class Chunks(NamedTuple):
    """The chunks of a batch, in order. Shapes: K chunks, D texts."""

    starts_K: NDArray[np.int64]  # offset in the batch, in characters
    ends_K: NDArray[np.int64]
    hashes_K: NDArray[np.uint64]
    firsts_D1: NDArray[np.int64]  # [D + 1] the first chunk of each text; the last entry is K


def find_chunks(batch: TextBatch) -> Chunks:
    """Return the chunks of every text in `batch`."""
    room = len(batch.codes_C) // 2 + len(batch.starts_D1)
    places = np.empty((2, room), np.int64)
    hashes = np.empty(room, np.uint64)
    firsts = np.zeros(len(batch.starts_D1), np.int64)
    _split_chunks(*batch, places[0], places[1], hashes, firsts)
    count = int(firsts[-1])
    return Chunks(places[0, :count], places[1, :count], hashes[:count], firsts)


@compile_nogil
def _split_chunks(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    firsts: NDArray[np.int64],
) -> None:
    chunk = 0
    for text in range(len(texts) - 1):
        place = texts[text]
        end = texts[text + 1]
        while place < end:
            if classes[place] & SPACE:
                place += 1
                continue
            starts[chunk] = place
            found = SEED
            while place < end and classes[place] & SPACE == 0:
                found = (found ^ np.uint64(codes[place])) * PRIME
                place += 1
            ends[chunk] = place
            hashes[chunk] = mix_bits(found)
            chunk += 1
        firsts[text + 1] = chunk
