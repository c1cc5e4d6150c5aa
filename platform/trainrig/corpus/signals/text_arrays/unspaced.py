"""Splits texts of languages without spaces into words.

A rule without a dictionary: in a text of such a language, a run of ideograms or kana is split into
words of two characters, and a run of Thai, Lao, Khmer or Myanmar letters into words of four, with
marks counted as part of the letter before. The means of real words are 1.5 to 2 and about 4, so
Gopher's 50 words are about as much text as in English. Symbols belong to the word before. Other
parts of the text are split at white space as usual; a change of script also ends a word.

Limits: `mean_word_length` is meaningless, and n-grams miss a repetition that starts at an odd
character, though lines and paragraphs find it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import IDEOGRAM, MARK, SYLLABLE, SYMBOL

# Codes of lid.176: Japanese, Khmer, Lao, Burmese, Thai, Wu, Cantonese, Chinese. Tibetan marks its
# syllables and so is not included.
UNSPACED = ("ja", "km", "lo", "my", "th", "wuu", "yue", "zh")
IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4


def are_unspaced(languages: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the `languages` (ISO 639 codes) that are written without spaces."""
    return np.fromiter((language in UNSPACED for language in languages), bool, len(languages))


@compile_nogil
def find_unspaced_end(classes: NDArray[np.uint16], start: int, end: int) -> int:
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
