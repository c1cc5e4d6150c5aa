"""The words of a batch of texts: runs of characters without white space, in lower case.

Languages without spaces have a rule without a dictionary. In a text of such a language, a run of
ideograms or kana is split into words of two characters, and a run of Thai, Lao, Khmer or Myanmar
letters into words of four, with marks counted as part of the letter before. The means of real words
are 1.5 to 2 and about 4, so Gopher's 50 words are about as much text as in English. Symbols belong
to the word before. Other parts of the text are split at white space as usual; a change of script
also ends a word.

Limits of that rule: `mean_word_length` is meaningless, and n-grams miss a repetition that starts at
an odd character, though lines and paragraphs find it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Bools, Int64s, UInt16s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    CAPITAL_I_WITH_DOT,
    CAPITAL_SIGMA,
    CASED,
    DOT_ABOVE,
    FINAL_SIGMA,
    IDEOGRAM,
    IGNORABLE,
    LETTER,
    MARK,
    PRIME,
    SEED,
    SIGMA,
    SPACE,
    SYLLABLE,
    SYMBOL,
    TextBatch,
    build_character_tables,
    mix_bits,
)

# Codes of lid.176: Japanese, Khmer, Lao, Burmese, Thai, Wu, Cantonese, Chinese. Tibetan marks its
# syllables and so is not included.
UNSPACED = ("ja", "km", "lo", "my", "th", "wuu", "yue", "zh")
IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4


def are_unspaced(languages: Sequence[str]) -> Bools:
    """Mark the `languages` (ISO 639 codes) that are written without spaces."""
    return np.fromiter((language in UNSPACED for language in languages), bool, len(languages))


@compile_nogil
def find_unspaced_end(classes: UInt16s, start: int, end: int) -> int:
    """Return the end of the word that starts at `start`; `end` is the next white space."""
    script = classes[start] & (IDEOGRAM | SYLLABLE)
    place = start + 1
    if script == 0:
        while place < end and classes[place] & (IDEOGRAM | SYLLABLE) == 0:
            place += 1
        return place
    most = IDEOGRAMS_A_WORD if script == IDEOGRAM else SYLLABLES_A_WORD
    letters = 1
    while place < end:
        if classes[place] & MARK == 0:
            if classes[place] & script == 0 or letters == most:
                break
            letters += 1
        place += 1
    while place < end and classes[place] & SYMBOL:
        place += 1
    return place


class BatchWords(NamedTuple):
    """The words of a batch, in order. Shapes: W words, D texts."""

    hashes_W: UInt64s  # hashes of the lower-case words
    before_W1: Int64s  # [W + 1] total characters of the words before each, in lower case
    ends_W: Int64s  # end of each word in the batch
    lettered_W: Bools  # True if the word contains a letter
    firsts_D1: Int64s  # [D + 1] the first word of each text; the last entry is W


def split_words(batch: TextBatch, languages: Sequence[str]) -> BatchWords:
    """Split the texts into words; each text has one of `languages`."""
    room = len(batch.codes_C)
    hashes = np.empty(room, np.uint64)
    before = np.zeros(room + 1, np.int64)
    ends = np.empty(room, np.int64)
    lettered = np.empty(room, np.bool_)
    firsts = np.zeros(len(batch.starts_D1), np.int64)
    unspaced = are_unspaced(languages)
    lower = build_character_tables().lower
    words = BatchWords(hashes, before, ends, lettered, firsts)
    _split_text_words(batch, lower, unspaced, words)
    count = int(firsts[-1])
    return BatchWords(hashes[:count], before[: count + 1], ends[:count], lettered[:count], firsts)


@compile_nogil
def _split_text_words(batch: TextBatch, lower: UInt32s, unspaced: Bools, words: BatchWords) -> None:
    codes, classes, starts = batch
    hashes, before, ends, lettered, firsts = words
    word = 0
    for text in range(len(starts) - 1):
        start = starts[text]
        end = starts[text + 1]
        place = start
        while place < end:
            if classes[place] & SPACE:
                place += 1
                continue
            stop = end
            if unspaced[text]:
                stop = place + 1
                while stop < end and classes[stop] & SPACE == 0:
                    stop += 1
                stop = find_unspaced_end(classes, place, stop)
            found = SEED
            seen = np.uint16(0)
            first = place
            length = 0
            while place < stop and classes[place] & SPACE == 0:
                code = lower[codes[place]]
                # The lower case of these two letters is not in the table; both are above 0xFF.
                if codes[place] == CAPITAL_SIGMA:
                    code = np.uint32(_lower_sigma(classes, start, place, end))
                found = (found ^ np.uint64(code)) * PRIME
                if codes[place] == CAPITAL_I_WITH_DOT:
                    found = (found ^ np.uint64(DOT_ABOVE)) * PRIME
                    length += 1
                seen |= classes[place]
                place += 1
            length += place - first
            hashes[word] = mix_bits(found)
            before[word + 1] = before[word] + length
            ends[word] = place
            lettered[word] = seen & LETTER != 0
            word += 1
        firsts[text + 1] = word


@compile_nogil
def _lower_sigma(classes: UInt16s, start: int, place: int, end: int) -> int:
    """Return the sigma that `str.lower` writes for the capital at `place`, in `start` to `end`."""
    left = place - 1
    while left >= start and classes[left] & IGNORABLE:
        left -= 1
    if left < start or classes[left] & CASED == 0:
        return SIGMA
    right = place + 1
    while right < end and classes[right] & IGNORABLE:
        right += 1
    return SIGMA if right < end and classes[right] & CASED else FINAL_SIGMA
