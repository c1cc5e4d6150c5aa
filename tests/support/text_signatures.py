"""Shingles and digests of single texts, and the similarity of two sets of shingles."""

import numpy as np

from trainrig.corpus.array_types import UInt32s
from trainrig.corpus.signatures.normalised_texts import NormalisedTexts, hash_texts
from trainrig.corpus.signatures.shingles import shingle_texts


def hash_text(text: str) -> bytes:
    """Return the digest of one text."""
    return hash_texts(NormalisedTexts.of([text])).tobytes()


def shingle(text: str, words: int) -> UInt32s:
    """Return the distinct hashes of all runs of `words` words in `text`, sorted."""
    return shingle_texts(NormalisedTexts.of([text]), words)[0]


def jaccard(a: UInt32s, b: UInt32s) -> float:
    """Return the Jaccard similarity of two sorted sets: intersection size over union size."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)
