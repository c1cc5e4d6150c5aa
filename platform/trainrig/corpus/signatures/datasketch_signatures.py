"""Signatures computed by datasketch (2.0) itself, for comparison with its indexes.

An element is a shingle's words joined by one space, in UTF-8, hashed by datasketch's SHA-1, as in
its own examples. This is about 40 times slower than the scheme "fast". The module is imported only
when needed, because datasketch imports scipy.
"""

import re

import datasketch
import numpy as np

from trainrig.corpus.array_types import UInt64s
from trainrig.corpus.signatures import normalised_texts
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.shingles import IDEOGRAMS_A_WORD, SYLLABLES_A_WORD

SCHEMES = {
    "datasketch": "affine32",  # the default of datasketch
    "datasketch-affine64": "affine64",
    "datasketch-legacy": "legacy",
}
_BLOCK = 4096  # shingles permuted at once: with 128 rows they take 4 MB
_UNSPACED = normalised_texts.IDEOGRAM | normalised_texts.SYLLABLE


def compute_datasketch_signatures(
    texts: normalised_texts.NormalisedTexts, settings: MinHash
) -> UInt64s:
    """Return the MinHash values of each text as [texts, bands x rows]."""
    rows = settings.bands * settings.rows
    empty = datasketch.MinHash(rows, settings.seed, scheme=SCHEMES[settings.scheme])
    found = np.empty((len(texts.starts) - 1, rows), np.uint64)
    for number, (start, end) in enumerate(zip(texts.starts, texts.starts[1:], strict=False)):
        text = texts.data[start:end].tobytes().decode("utf-8", "surrogatepass")
        words = split_words(text, settings.shingle_words)
        one = empty.copy()
        last = max(0, len(words) - settings.shingle_words)
        for first in range(0, last + 1, _BLOCK):
            places = range(first, min(first + _BLOCK, last + 1))
            joined = (" ".join(words[at : at + settings.shingle_words]) for at in places)
            one.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in joined])
        found[number] = one.hashvalues
    return found


def split_words(text: str, shingle_words: int) -> list[str]:
    """Return the words that form shingles; in scripts without spaces each letter starts a word.

    Such a word reaches as far ahead as in `shingles.py`.
    """
    lower = text.lower()
    flags = normalised_texts.build_letter_table()[
        np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), np.uint32)
    ]
    if not (flags & np.uint32(_UNSPACED)).any():
        return re.findall(r"\w+", lower)
    words = []
    place = 0
    of = flags.tolist()
    of.append(0)  # sentinel that ends the last word
    while place < len(lower):
        script = of[place] & _UNSPACED
        end = place + 1
        if script:
            starts = [place]
            while of[end] & (normalised_texts.MARK | script):
                if of[end] & script:
                    starts.append(end)
                end += 1
            a_word = IDEOGRAMS_A_WORD if script == normalised_texts.IDEOGRAM else SYLLABLES_A_WORD
            reach = shingle_words * a_word - shingle_words + 1
            stops = [*starts[reach:], *[end] * reach]
            words += [lower[start:stop] for start, stop in zip(starts, stops, strict=False)]
        elif of[place] & normalised_texts.WORD:
            while of[end] & (normalised_texts.WORD | _UNSPACED) == normalised_texts.WORD:
                end += 1
            words.append(lower[place:end])
        place = end
    return words
