"""Rows of random documents, and a tokenizer with all special tokens of the denoising objectives."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from trainrig.tokens.batches import IGNORE, MicroBatch, build_token_arrays
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

EXTRA = ("<|mask|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "[R]", "[S]", "[X]")
SENTINELS = 100
Rows = Callable[..., MicroBatch]


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """Return a tokenizer of 256 bytes and the special tokens: one id for each byte of a text."""
    settings = ByteLevelBPE(vocabulary=256 + 7 + SENTINELS + len(EXTRA), sentinels=SENTINELS)
    settings = settings.model_copy(update={"extra": EXTRA})
    return Encoder(settings.train([]).decode())


def documents_in_rows(
    encoder: Encoder,
    count: int,
    length: int,
    mean: float = 60.0,
    seed: int = 0,
    first: int = 0,
    padded: bool = False,
    apart: bool = False,
    sizes: Sequence[int] = (),
) -> MicroBatch:
    """Return `count` rows of `length` positions, cut from concatenated documents.

    Documents have `mean` tokens on average, or `sizes` tokens in a cycle, without end tokens.
    `padded`: the last rows end with 0, 1, 2 … positions of padding.
    `apart`: attention does not cross document boundaries.
    """
    dice = np.random.default_rng(seed)
    words = np.array(sorted(set(range(encoder.vocabulary_size)) - {*encoder.special_ids.values()}))
    stream: list[int] = []
    begins = []
    given = itertools.cycle(sizes)
    while len(stream) <= count * length:
        begins.append(len(stream))
        size = next(given) if sizes else dice.geometric(1 / mean)
        stream += [*dice.choice(words, size).tolist(), encoder.end_of_text]
    ids = np.array(stream[: count * length + 1])
    places = np.union1d(np.array(begins), np.arange(count) * length)
    places = places[places < count * length]
    ids_BT = ids[:-1].reshape(count, length)
    targets_BT = ids[1:].reshape(count, length).copy()
    if padded:
        for row in range(count):
            left_out = row % length
            targets_BT[row, length - left_out :] = IGNORE
    pieces = np.stack([places // length, places % length, np.arange(len(places))], axis=1)
    samples = np.arange(first, first + count)
    positions_BT = None
    if apart:
        begins_BT = np.zeros_like(ids_BT)
        begins_BT[pieces[:, 0], pieces[:, 1]] = pieces[:, 1]
        positions_BT = np.arange(length) - np.maximum.accumulate(begins_BT, axis=1)
    arrays = build_token_arrays(ids_BT, targets_BT, positions_BT)
    return MicroBatch(arrays, samples, np.zeros_like(samples), pieces)


@pytest.fixture(scope="session")
def make_rows(encoder: Encoder) -> Rows:
    """Return the function `make_rows(rows, length, mean=60)`: see `documents_in_rows`."""
    return lambda *given, **named: documents_in_rows(encoder, *given, **named)
