"""Share of a text that is in the text's own language, by the languages of its paragraphs."""

from collections.abc import Sequence

import numpy as np

from trainrig.corpus.array_types import Float64s
from trainrig.corpus.models.language_id import PREFIX, LanguageModel, identify_all

# Fewest characters of a line that counts as a paragraph. Shorter lines are names and menu entries,
# and one in ten of them is identified wrongly.
PARAGRAPH = 60


def measure_language_share(
    texts: Sequence[str], languages: Sequence[str], model: LanguageModel
) -> Float64s:
    """Return the share of each text's paragraphs, by characters, in its language of `languages`.

    Paragraphs are lines of at least `PARAGRAPH` characters of the first `PREFIX` characters, and
    have letters. The share is 1 for a text without any, in steps of 1/1000.
    """
    paragraphs: list[str] = []
    owners: list[int] = []
    for number, text in enumerate(texts):
        lines = [line for line in text[:PREFIX].split("\n") if len(line) >= PARAGRAPH]
        paragraphs += lines
        owners += [number] * len(lines)
    codes, _ = identify_all(paragraphs, model=model)
    sizes = np.array(
        [len(paragraph) if code else 0 for paragraph, code in zip(paragraphs, codes, strict=True)],
        np.float64,
    )
    same = np.array(
        [code == languages[owner] for code, owner in zip(codes, owners, strict=True)], np.bool_
    )
    places = np.array(owners, np.int64)
    total = np.bincount(places, sizes, len(texts))
    own = np.bincount(places, sizes * same, len(texts))
    share = np.divide(own, total, out=np.ones(len(texts)), where=total > 0)
    rounded: Float64s = np.rint(share * 1000) / 1000
    return rounded
