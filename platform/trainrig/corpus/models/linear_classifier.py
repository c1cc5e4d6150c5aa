"""A linear classifier over hashed words and word n-grams, equivalent to fastText with two classes.

fastText (Joulin et al. 2016, arXiv:1607.01759) averages a vector for each word and n-gram of a text
and compares the mean with two output vectors. For two classes that equals a mean of one number per
n-gram: the projection of its vector on the difference of the outputs. These numbers are learnt
directly, by logistic regression: 8 MB where fastText's vectors take 800. Their sum is divided by
the square root of their number, where a mean divides by the number. So the evidence of a long text
weighs more than that of a short one, which classified held-out texts better (docs/performance.md).

Shapes: W words of all texts, D texts, B buckets.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Bools, Float32s, Float64s, Int64s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import PRIME, build_batch, mix_bits
from trainrig.corpus.signals.text_words import split_words

Weights = Float32s

LONGEST = 100_000  # words at the start of a text that are used


class Features(NamedTuple):
    """The words of texts, as 64-bit hashes of their lower case."""

    hashes_W: UInt64s
    firsts_D1: Int64s  # [D + 1] the first word of each text; the last entry is W


def extract_features(texts: Sequence[str], languages: Sequence[str]) -> Features:
    """Split `texts` into words by the rules of their languages ("" if unknown)."""
    words = split_words(build_batch(texts), languages)
    return Features(words.hashes_W, words.firsts_D1)


def concatenate_features(parts: Sequence[Features]) -> Features:
    """Concatenate the features of several batches of texts."""
    counts = [np.diff(part.firsts_D1) for part in parts]
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    return Features(np.concatenate([part.hashes_W for part in parts]), firsts)


def compute_evidence(features: Features, weights_B: Weights, words: int) -> Float64s:
    """Sum each text's n-gram weights and divide by the square root of their number.

    N-grams have up to `words` words. The result is NaN for a text without words.
    """
    found = np.full(len(features.firsts_D1) - 1, np.nan)
    _fill_evidence(features, weights_B, words, found)
    return found


def learn(
    features: Features,
    labels_D: Bools,
    buckets: int,
    words: int,
    epochs: int,
    rate: float,
    seed: int,
) -> Weights:
    """Learn the weights [B] that separate texts labelled true from the others.

    Logistic regression by AdaGrad (Duchi et al. 2011), one text at a time in a random order from
    `seed`; the learning rate falls linearly to 0. A single thread makes the weights reproducible.
    """
    weights = np.zeros(buckets, np.float32)
    squares = np.ones(buckets, np.float32)
    draw = np.random.Generator(np.random.PCG64(seed))
    count = len(labels_D)
    for epoch in range(epochs):
        rates = rate * (1 - (epoch * count + np.arange(count)) / (epochs * count))
        order = draw.permutation(count)
        _learn(features, labels_D, order, rates, words, weights, squares)
    return weights


@compile_nogil
def _find_bucket(key: np.uint64, buckets: int) -> np.int64:
    return np.int64(mix_bits(key) & np.uint64(buckets - 1))


@compile_nogil
def _sum_evidence(
    hashes: UInt64s, begin: int, end: int, weights: Weights, words: int
) -> tuple[float, int]:
    total = 0.0
    count = 0
    for place in range(begin, end):
        key = hashes[place]
        total += weights[_find_bucket(key, len(weights))]
        count += 1
        for after in range(place + 1, min(place + words, end)):
            key = key * PRIME ^ hashes[after]
            total += weights[_find_bucket(key, len(weights))]
            count += 1
    return total / np.sqrt(max(count, 1)), count


@compile_nogil
def _fill_evidence(features: Features, weights: Weights, words: int, found: Float64s) -> None:
    hashes, firsts = features
    for text in range(len(found)):
        end = min(firsts[text + 1], firsts[text] + LONGEST)
        total, count = _sum_evidence(hashes, firsts[text], end, weights, words)
        if count:
            found[text] = total


@compile_nogil
def _learn(
    features: Features,
    labels: Bools,
    order: Int64s,
    rates: Float64s,
    words: int,
    weights: Weights,
    squares: Weights,
) -> None:
    hashes, firsts = features
    for step in range(len(order)):
        text = order[step]
        begin = firsts[text]
        end = min(firsts[text + 1], begin + LONGEST)
        total = _sum_evidence(hashes, begin, end, weights, words)[0]
        error = 1.0 / (1.0 + np.exp(-total)) - labels[text]
        # The exact gradient would divide the error by the root of the number of n-grams. That
        # factor is omitted, so a word of a long text learns as fast as one of a short text.
        square = np.float32(error * error)
        change = rates[step] * error
        for place in range(begin, end):
            key = hashes[place]
            bucket = _find_bucket(key, len(weights))
            squares[bucket] += square
            weights[bucket] -= np.float32(change / np.sqrt(squares[bucket]))
            for after in range(place + 1, min(place + words, end)):
                key = key * PRIME ^ hashes[after]
                bucket = _find_bucket(key, len(weights))
                squares[bucket] += square
                weights[bucket] -= np.float32(change / np.sqrt(squares[bucket]))
