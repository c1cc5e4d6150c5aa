"""The columns of datatrove's readings of the rules, and their types."""

from typing import Any

import numpy as np

PREFIX = "datatrove_"
_COUNT, _RATIO = np.dtype(np.int64), np.dtype(np.float64)
_FINEWEB = (
    "terminal_lines",
    "short_lines",
    "fineweb_duplicate_line_characters",
    "new_lines_per_word",
)

# Ratios are quotients of two counts as they are, neither rounded: datatrove rounds none. They are
# NaN, which breaks no rule, where datatrove has no number either.
DATATROVE_SIGNALS: dict[str, np.dtype[Any]] = {
    PREFIX + name: dtype
    for name, dtype in (
        ("words", _COUNT),  # tokens that are not punctuation alone
        ("mean_word_length", _RATIO),  # characters, of those
        ("hashes_per_word", _RATIO),  # by all tokens, as are the next ones
        ("ellipses_per_word", _RATIO),
        ("alphabetic_words", _RATIO),
        ("stop_words", _COUNT),
        ("bullet_lines", _RATIO),
        ("ellipsis_lines", _RATIO),
        ("duplicate_lines", _RATIO),
        ("duplicate_line_characters", _RATIO),  # of the text's characters, as are the next ones
        ("duplicate_paragraphs", _RATIO),
        ("duplicate_paragraph_characters", _RATIO),
        *((f"top_{n}_gram", _RATIO) for n in (2, 3, 4)),
        *((f"duplicate_{n}_grams", _RATIO) for n in range(5, 11)),
        ("c4_sentences", _COUNT),
        ("c4_sentences_any_end", _COUNT),
        ("lorem_ipsum", _COUNT),  # lines that make C4's filter drop the page
        ("curly_brackets", _COUNT),
        ("lorem_ipsum_any_end", _COUNT),  # the same without the rule of terminal punctuation
        ("curly_brackets_any_end", _COUNT),
        *((name, _RATIO) for name in _FINEWEB),
        *((f"c4_{name}", _RATIO) for name in _FINEWEB),  # of the text that C4's filter leaves
    )
}
