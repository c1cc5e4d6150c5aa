"""Words of languages that are written without spaces between them.

A rule, not a dictionary: in a text of such a language, a run of ideograms or kana is cut into
words of two characters, and a run of Thai, Lao, Khmer or Myanmar letters into words of four, marks
counted with the letter before them. Means of real words are 1.5 to 2 and about 4, so Gopher's 50
words stand for about as much text as in English. Signs go with the word before them. What else
such a text holds is cut at white space, as everywhere; a change of script ends a word as well.

What it is not good for: `mean_word_length` says nothing, and a repetition that starts at an odd
character is missed by n-grams, though lines and paragraphs see it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import IDEOGRAM, MARK, SYLLABLE, SYMBOL

# Codes of lid.176: Japanese, Khmer, Lao, Burmese, Thai, Wu, Cantonese, Chinese. Not Tibetan, which
# marks its syllables.
UNSPACED = ("ja", "km", "lo", "my", "th", "wuu", "yue", "zh")
IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4


def are_unspaced(languages: Sequence[str]) -> NDArray[np.bool_]:
    """Which of `languages` (ISO 639 codes) this rule is for."""
    return np.fromiter((language in UNSPACED for language in languages), bool, len(languages))


@compile_nogil
def find_unspaced_end(classes: NDArray[np.uint16], start: int, end: int) -> int:
    """Where the word that starts at `start` ends by this rule; `end` is the next white space."""
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
