"""Words as GPT-3's decontamination filter compares them: lower-case, without punctuation.

The source is Brown et al. 2020 (arXiv:2005.14165, appendix C). White space is Python's
(`str.split`), lower case is Python's (`str.lower`). Punctuation is every Unicode punctuation mark
or symbol, which includes all of `string.punctuation`. "Don't" is the word "dont"; a dash between
spaces is no word.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.batch import build_batch
from trainrig.corpus.signals.text_arrays.characters import (
    CAPITAL_I_WITH_DOT,
    CAPITAL_SIGMA,
    DOT_ABOVE,
    SPACE,
    SYMBOL,
    build_character_tables,
)
from trainrig.corpus.signals.text_arrays.hashing import PRIME, SEED, mix_bits


class NormalisedWords(NamedTuple):
    """Words of some texts, concatenated.

    Array suffixes: L is the number of letters, W of words, D of texts; D1 is D + 1.
    """

    letters_L: NDArray[np.uint32]  # code points of the words in lower case, without punctuation
    ends_W: NDArray[np.int64]  # where each word's letters end
    hashes_W: NDArray[np.uint64]  # hash of each word's letters
    # Start and end of each word in its text, in characters; the punctuation around it is included.
    begins_W: NDArray[np.int64]
    stops_W: NDArray[np.int64]
    # [D + 1] index of the first word of each text; the last entry is W
    firsts_D1: NDArray[np.int64]


def split_words(texts: Sequence[str]) -> NormalisedWords:
    """Split `texts` into normalised words."""
    batch = build_batch(texts)
    room = len(batch.codes_C)
    most = room // 2 + len(texts)  # most words: each but a text's last has white space after it
    letters = np.empty(2 * room, np.uint32)  # lower case has at most two code points per character
    ends, begins, stops = (np.empty(most, np.int64) for _ in range(3))
    hashes = np.empty(most, np.uint64)
    firsts = np.zeros(len(texts) + 1, np.int64)
    lower = build_character_tables().lower
    sigmas = _lower_sigmas(texts)
    _split_normal_words(*batch, lower, sigmas, letters, ends, hashes, begins, stops, firsts)
    count = int(firsts[-1])
    return NormalisedWords(
        letters[: int(ends[count - 1]) if count else 0],
        ends[:count],
        hashes[:count],
        begins[:count],
        stops[:count],
        firsts,
    )


def _lower_sigmas(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return the lower case of each capital sigma, in order: it depends on the letters around."""
    found: list[int] = []
    for text in texts:
        if chr(CAPITAL_SIGMA) in text:
            # The lower case of "İ" has two characters, which would shift positions. To the sigmas
            # around it, "I" is the same.
            lowered = text.replace(chr(CAPITAL_I_WITH_DOT), "I").lower()
            found += (
                ord(lowered[place])
                for place, character in enumerate(text)
                if character == chr(CAPITAL_SIGMA)
            )
    return np.array(found, np.uint32)


@compile_nogil
def _split_normal_words(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    starts: NDArray[np.int64],
    lower: NDArray[np.uint32],
    sigmas: NDArray[np.uint32],
    letters: NDArray[np.uint32],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> None:
    """Fill the arrays of NormalisedWords, from `letters` on, with the words of all texts."""
    word = letter = sigma = 0
    for text in range(len(starts) - 1):
        start = starts[text]
        end = starts[text + 1]
        place = start
        while place < end:
            if classes[place] & SPACE:
                place += 1
                continue
            begin = place
            first_letter = letter
            hash_ = SEED
            while place < end and classes[place] & SPACE == 0:
                if classes[place] & SYMBOL == 0:
                    code = lower[codes[place]]
                    if codes[place] == CAPITAL_SIGMA:
                        code = sigmas[sigma]
                        sigma += 1
                    letters[letter] = code
                    hash_ = (hash_ ^ np.uint64(code)) * PRIME
                    letter += 1
                    if codes[place] == CAPITAL_I_WITH_DOT:
                        letters[letter] = DOT_ABOVE
                        hash_ = (hash_ ^ np.uint64(DOT_ABOVE)) * PRIME
                        letter += 1
                place += 1
            if letter > first_letter:
                ends[word] = letter
                hashes[word] = mix_bits(hash_)
                begins[word] = begin - start
                stops[word] = place - start
                word += 1
        firsts[text + 1] = word
