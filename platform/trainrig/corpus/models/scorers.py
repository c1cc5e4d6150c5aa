"""Scorers that a run file can name: perplexity, classifier, word list and bad words.

To add a scorer, write a Settings class with `kind`, `column`, `read_content_keys()` (hashes for the
fingerprint) and `score(texts, languages)`, and add it to `Scorer`.

`WordList` measures the share of a text that a list of unwanted words covers. For a trained
classifier of toxicity, use a `Classifier` with another column. `BadWords` counts the entries of a
list (C4: Raffel et al. 2020, section 2.2). C4 drops a page that contains any word of the "List of
Dirty, Naughty, Obscene or Otherwise Bad Words" of its language; `C4(max_bad_words = 0)` drops pages
as the paper does. No list comes with this package: the user names files.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.limits import Scores, quantise_scores
from trainrig.corpus.models.classifier import ClassifierModel
from trainrig.corpus.models.language_model import Perplexity as Perplexity
from trainrig.corpus.signals.text_words import UNSPACED
from trainrig.errors import DataError

ANY_LANGUAGE = ""  # key of the list for all languages without their own
# A word, or a sign that may be part of an entry ("f*ck"); white space only separates them.
_TOKEN = re.compile(r"\w+|[^\w\s]")


class _ListScorer(Settings):
    """Base of the scorers that read lists."""

    kind: str  # the name in a run file
    # List for all texts, or one for each language: {en = "en.txt", ja = "ja.txt"}.
    path: Annotated[str | dict[str, str], NOT_IDENTITY]

    def read_content_keys(self) -> dict[str, str]:
        """Return content hashes of the lists. Raises FileNotFoundError if one is missing."""
        languages = sorted(self._paths)
        keys = storage.compute_content_keys([self._paths[language] for language in languages])
        return dict(zip(languages, keys, strict=True))

    @property
    def _paths(self) -> Mapping[str, str]:
        return self.path if isinstance(self.path, dict) else {ANY_LANGUAGE: self.path}


class WordList(_ListScorer):
    """The share of a text's words that are entries of a list, or parts of its phrases.

    A list has one word or phrase a line; blank lines and lines that begin with "# " are ignored.
    Entries match whole words, regardless of case. In languages without spaces between words
    (Chinese, Japanese, Thai, …) they match anywhere, and characters are counted instead of words. A
    text without words, or in a language without a list, has no share (NaN).
    """

    kind: Literal["WordList"] = "WordList"
    # Column for the share of words.
    column: str = Field(default="toxic_words", pattern=r"^[a-z][a-z0-9_]*$")

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Return each text's share, in steps of 1/10000. Raises DataError for an invalid list."""
        shares = [
            _compute_share(text, language, self._paths)
            for text, language in zip(texts, languages, strict=True)
        ]
        return quantise_scores(np.array(shares, np.float64))


def _compute_share(text: str, language: str, paths: Mapping[str, str]) -> float:
    path = paths.get(language, paths.get(ANY_LANGUAGE))
    if path is None:
        return np.nan
    if language in UNSPACED:
        return _measure_covered_characters(text.casefold(), _compile_list_pattern(path))
    return _measure_covered_words(_TOKEN.findall(text.casefold()), _load_phrases(path))


def _measure_covered_words(
    tokens: Sequence[str], phrases: Mapping[str, Sequence[Sequence[str]]]
) -> float:
    words = sum(token[0].isalnum() or token[0] == "_" for token in tokens)
    if not words:
        return np.nan
    covered = 0
    until = 0
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
    """Return the entries of the list at `path`, case-folded and sorted.

    Raises DataError if the list is missing, not UTF-8 or empty.
    """
    try:
        text = storage.read(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; name a list of words, one entry a line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    found = tuple(sorted({entry for entry in _iterate_entries(text) if _TOKEN.search(entry)}))
    if not found:
        raise DataError(f"{path} has no entries; write one word or phrase a line")
    return found


def _iterate_entries(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.strip() and not line.startswith("# "):
            yield " ".join(line.casefold().split())


@functools.cache
def _load_phrases(path: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """Return the entries as tokens, keyed by their first token, longest first."""
    found: dict[str, list[list[str]]] = {}
    for entry in read_entries(path):
        tokens = _TOKEN.findall(entry)
        found.setdefault(tokens[0], []).append(tokens)
    return {first: sorted(phrases, key=len, reverse=True) for first, phrases in found.items()}


@functools.cache
def _compile_list_pattern(path: str) -> re.Pattern[str]:
    longest_first = sorted(read_entries(path), key=lambda entry: (-len(entry), entry))
    return re.compile("|".join(map(re.escape, longest_first)))


_WORD = re.compile(r"\w+")


class BadWords(_ListScorer):
    """Counts the different entries of a list that occur in a text.

    A list has one word or phrase a line; blank lines and lines that begin with "# " are ignored. An
    entry matches regardless of case, unless a letter, digit or "_" comes directly before or after
    it; in languages without spaces between words (Chinese, Japanese, Thai, …) it matches anywhere.
    A text in a language without a list has no count (NaN), which breaks no rule.
    """

    kind: Literal["BadWords"] = "BadWords"
    # Column for the number of different entries.
    column: str = Field(default="bad_words", pattern=r"^[a-z][a-z0-9_]*$")

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Count the list entries in each text. Raises DataError for an invalid list."""
        paths = self._paths
        lists = [paths.get(language, paths.get(ANY_LANGUAGE)) for language in languages]
        numbers = [
            np.nan if path is None else _count_entries(text.casefold(), path, language in UNSPACED)
            for text, path, language in zip(texts, lists, languages, strict=True)
        ]
        return np.array(numbers, np.float64)


def _count_entries(text: str, path: str, anywhere: bool) -> int:
    if anywhere:
        return sum(entry in text for entry in read_entries(path))
    by_word = _compile_entry_patterns(path)
    # Most texts contain no first word of any entry.
    words = by_word.keys() & {"", *_WORD.findall(text)}
    return sum(bool(entry.search(text)) for word in sorted(words) for entry in by_word[word])


@functools.cache
def _compile_entry_patterns(path: str) -> Mapping[str, Sequence[re.Pattern[str]]]:
    """Return patterns of the entries, keyed by their first word, or "" for entries without one."""
    found: dict[str, list[re.Pattern[str]]] = {}
    for entry in read_entries(path):
        word = _WORD.search(entry)
        pattern = re.compile(rf"(?<!\w){re.escape(entry)}(?!\w)")
        found.setdefault(word[0] if word else "", []).append(pattern)
    return found


class Classifier(Settings):
    """The probability that a text resembles the positives that the classifier was trained on.

    It may measure quality, toxicity or anything else; name `column` accordingly. A text without
    words has no probability (NaN), which breaks no rule.
    """

    kind: Literal["Classifier"] = "Classifier"
    path: Annotated[str, NOT_IDENTITY]  # file written by `trainrig classifier`
    # Column for the probability.
    column: str = Field(default="quality", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """Return the content hash of the model. Raises FileNotFoundError if it is missing."""
        return {"path": storage.compute_content_key(self.path)}

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Return the probability of each text, in steps of 1/10000.

        Raises DataError for an invalid model.
        """
        return _load_classifier(self.path).score(texts, languages)


@functools.cache
def _load_classifier(path: str) -> ClassifierModel:
    return ClassifierModel.open(path)


Scorer = Annotated[Perplexity | Classifier | WordList | BadWords, Field(discriminator="kind")]
