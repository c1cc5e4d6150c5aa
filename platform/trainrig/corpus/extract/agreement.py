"""The share of each block that another extractor's text contains as well."""

import re

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_GRAM = 3  # words


def measure_agreement(blocks: list[str], text: str) -> NDArray[np.int32]:
    """Return for each block the thousandths of its three-word runs that `text` contains.

    A block of three words or fewer counts 1000 if a line of `text` has exactly these words, else 0.
    """
    words = _WORD.findall(text)
    grams = set(zip(*(words[i:] for i in range(_GRAM)), strict=False))
    lines = {tuple(_WORD.findall(line)) for line in text.split("\n")}
    result = np.zeros(len(blocks), np.int32)
    for number, block in enumerate(blocks):
        its_words = _WORD.findall(block)
        if len(its_words) <= _GRAM:
            result[number] = 1000 * (tuple(its_words) in lines)
        else:
            its_grams = list(zip(*(its_words[i:] for i in range(_GRAM)), strict=False))
            result[number] = 1000 * sum(gram in grams for gram in its_grams) // len(its_grams)
    return result
