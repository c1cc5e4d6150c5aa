"""Names and dtypes of the columns of datatrove's signals."""

from typing import Any

import numpy as np

PREFIX = "datatrove_"
_COUNT = np.dtype(np.int64)
_RATIO = np.dtype(np.float64)
_FINEWEB = (
    "terminal_lines",
    "short_lines",
    "fineweb_duplicate_line_characters",
    "new_lines_per_word",
)

# Ratios are unrounded quotients of two counts, as in datatrove. They are NaN, which breaks no rule,
# where datatrove has no number either.
DATATROVE_SIGNALS: dict[str, np.dtype[Any]] = {
    PREFIX + name: dtype
    for name, dtype in (
        ("words", _COUNT),  # tokens that are not only punctuation
        ("mean_word_length", _RATIO),  # characters per token that is not only punctuation
        ("hashes_per_word", _RATIO),  # this and the next ratios are per token, of all tokens
        ("ellipses_per_word", _RATIO),
        ("alphabetic_words", _RATIO),
        ("stop_words", _COUNT),
        ("bullet_lines", _RATIO),
        ("ellipsis_lines", _RATIO),
        ("duplicate_lines", _RATIO),
        # this and the next shares are of all characters of the text
        ("duplicate_line_characters", _RATIO),
        ("duplicate_paragraphs", _RATIO),
        ("duplicate_paragraph_characters", _RATIO),
        *((f"top_{n}_gram", _RATIO) for n in (2, 3, 4)),
        *((f"duplicate_{n}_grams", _RATIO) for n in range(5, 11)),
        ("c4_sentences", _COUNT),
        ("c4_sentences_any_end", _COUNT),
        ("lorem_ipsum", _COUNT),  # number of lines that make C4's filter drop the page
        ("curly_brackets", _COUNT),
        ("lorem_ipsum_any_end", _COUNT),  # the same without the rule about terminal punctuation
        ("curly_brackets_any_end", _COUNT),
        *((name, _RATIO) for name in _FINEWEB),
        # measured on the text that C4's filter keeps
        *((f"c4_{name}", _RATIO) for name in _FINEWEB),
    )
}
