"""Counts the entries of a list of bad words in a text (C4: Raffel et al. 2020, section 2.2).

C4 drops a page that contains any word of the "List of Dirty, Naughty, Obscene or Otherwise Bad
Words" of its language. No list comes with this package: the user names files. `C4(max_bad_words =
0)` drops pages as the paper does. `WordList` measures the share of a text that a list covers.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.scores import Scores
from trainrig.corpus.models.toxicity import ANY, read_entries
from trainrig.corpus.signals.text_words import UNSPACED

_WORD = re.compile(r"\w+")


class BadWords(Settings):
    """Counts the different entries of a list that occur in a text.

    A list has one word or phrase a line; blank lines and lines that begin with "# " are ignored. An
    entry matches regardless of case, unless a letter, digit or "_" comes directly before or after
    it; in languages without spaces between words (Chinese, Japanese, Thai, …) it matches anywhere.
    A text in a language without a list has no count (NaN), which breaks no rule.
    """

    kind: Literal["BadWords"] = "BadWords"
    # List for all texts, or one for each language: {en = "en.txt", ja = "ja.txt"}.
    path: Annotated[str | dict[str, str], NOT_IDENTITY]
    # Column for the number of different entries.
    column: str = Field(default="bad_words", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """Return content hashes of the lists. Raises FileNotFoundError if one is missing."""
        return {
            language: storage.compute_content_key(path)
            for language, path in sorted(self._paths.items())
        }

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Count the list entries in each text. Raises DataError for an invalid list."""
        paths = self._paths
        lists = [paths.get(language, paths.get(ANY)) for language in languages]
        numbers = [
            np.nan if path is None else _count_entries(text.casefold(), path, language in UNSPACED)
            for text, path, language in zip(texts, lists, languages, strict=True)
        ]
        return np.array(numbers, np.float64)

    @property
    def _paths(self) -> Mapping[str, str]:
        return self.path if isinstance(self.path, dict) else {ANY: self.path}


def _count_entries(text: str, path: str, anywhere: bool) -> int:
    if anywhere:
        return sum(entry in text for entry in read_entries(path))
    by_word = _compile_patterns(path)
    # Most texts contain no first word of any entry.
    words = by_word.keys() & {"", *_WORD.findall(text)}
    return sum(bool(entry.search(text)) for word in sorted(words) for entry in by_word[word])


@functools.cache
def _compile_patterns(path: str) -> Mapping[str, Sequence[re.Pattern[str]]]:
    """Return patterns of the entries, keyed by their first word, or "" for entries without one."""
    found: dict[str, list[re.Pattern[str]]] = {}
    for entry in read_entries(path):
        word = _WORD.search(entry)
        pattern = re.compile(rf"(?<!\w){re.escape(entry)}(?!\w)")
        found.setdefault(word[0] if word else "", []).append(pattern)
    return found
