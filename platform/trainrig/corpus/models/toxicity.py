"""Words that nobody wants to read: the share of a text that a list of them covers.

A trained classifier of toxicity is a `Classifier` under another column.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.scores import Scores, quantise_scores
from trainrig.corpus.signals.text_arrays.unspaced import UNSPACED
from trainrig.errors import DataError

ANY = ""  # the language of a list for all texts
# A word, or a sign that may stand in an entry ("f*ck"); white space only parts them.
_TOKEN = re.compile(r"\w+|[^\w\s]")


class WordList(Settings):
    """The share of a text's words that are entries of a list, or parts of its phrases.

    A list has one entry a line, of one word or several; blank lines and those that begin with "# "
    are none. Entries match whole words, whatever their case. In languages without spaces between
    words (Chinese, Japanese, Thai, …) they match anywhere, and characters are counted for words.
    A text without a word has no share (NaN), and neither has one in a language without a list.
    """

    kind: Literal["WordList"] = "WordList"
    # List for all texts, or one for each language: {en = "en.txt", ja = "ja.txt"}.
    path: Annotated[str | dict[str, str], NOT_IDENTITY]
    # Column to write the share of words to.
    column: str = Field(default="toxic_words", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """What the scores depend on besides these settings. Raises FileNotFoundError."""
        return {
            language: storage.compute_content_key(path)
            for language, path in sorted(self._paths.items())
        }

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """The share of each text, in steps of 1/10000. Raises DataError for a bad list."""
        shares = [
            _compute_share(text, language, self._paths)
            for text, language in zip(texts, languages, strict=True)
        ]
        return quantise_scores(np.array(shares, np.float64))

    @property
    def _paths(self) -> Mapping[str, str]:
        return self.path if isinstance(self.path, dict) else {ANY: self.path}


def _compute_share(text: str, language: str, paths: Mapping[str, str]) -> float:
    path = paths.get(language, paths.get(ANY))
    if path is None:
        return np.nan
    if language in UNSPACED:
        return _measure_covered_characters(text.casefold(), _compile_pattern(path))
    return _measure_covered_words(_TOKEN.findall(text.casefold()), _load_phrases(path))


def _measure_covered_words(
    tokens: Sequence[str], phrases: Mapping[str, Sequence[Sequence[str]]]
) -> float:
    words = sum(token[0].isalnum() or token[0] == "_" for token in tokens)
    if not words:
        return np.nan
    covered, until = 0, 0
    for place, token in enumerate(tokens):
        for phrase in phrases.get(token, ()):  # longest first
            if tokens[place : place + len(phrase)] == phrase:
                until = max(until, place + len(phrase))
                break
        covered += place < until and (token[0].isalnum() or token[0] == "_")
    return covered / words


def _measure_covered_characters(text: str, pattern: re.Pattern[str]) -> float:
    characters = sum(not character.isspace() for character in text)
    if not characters:
        return np.nan
    covered = sum(
        not character.isspace() for found in pattern.finditer(text) for character in found.group()
    )
    return covered / characters


@functools.cache
def read_entries(path: str) -> tuple[str, ...]:
    """What the list at `path` holds, case folded, sorted. Raises DataError for a bad list."""
    try:
        text = storage.read(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; name a list of words, one entry a line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save it so") from None
    found = tuple(sorted({entry for entry in _iterate_entries(text) if _TOKEN.search(entry)}))
    if not found:
        raise DataError(f"{path}: no entry; write words or phrases, one a line")
    return found


def _iterate_entries(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.strip() and not line.startswith("# "):
            yield " ".join(line.casefold().split())


@functools.cache
def _load_phrases(path: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Entries by their first token, longest first."""
    found: dict[str, list[list[str]]] = {}
    for entry in read_entries(path):
        tokens = _TOKEN.findall(entry)
        found.setdefault(tokens[0], []).append(tokens)
    return {first: sorted(each, key=len, reverse=True) for first, each in found.items()}


@functools.cache
def _compile_pattern(path: str) -> re.Pattern[str]:
    longest_first = sorted(read_entries(path), key=lambda entry: (-len(entry), entry))
    return re.compile("|".join(map(re.escape, longest_first)))
