"""Gopher's rules for web pages (Rae et al. 2021, arXiv:2112.11446, appendix A1.1, table A1).

datatrove implements them differently, which `words = "datatrove"` follows. Its words are spaCy's
tokens, so a full stop is a word without a letter. Counts of words leave out tokens of punctuation.
Its stop words are English for every language, compared with case. Shares of characters are of the
whole text, with white space. The top n-gram may occur only once. N-grams that overlap a duplicate
n-gram are skipped. Its bullets are "•" and "-".
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.corpus.filters.word_rules import CountsWords
from trainrig.corpus.limits import Limit
from trainrig.corpus.signals.text_words import UNSPACED
from trainrig.corpus.signals.word_signals import LANGUAGES


class GopherQuality(CountsWords):
    """Drops text that is too short, too long, or not made of sentences.

    These are all quality rules of the paper. Stop words are those of the document's language;
    without a list for it (signals/stop_words.py) the rule does not apply. Different stop words are
    counted, as in datatrove. The mean word length does not apply to languages without spaces.
    """

    kind: Literal["GopherQuality"] = "GopherQuality"
    min_words: int = Field(default=50, ge=0)  # fewest words of a text
    max_words: int = Field(default=100_000, gt=0)  # most words of a text
    # Lowest mean length of words, in characters.
    min_mean_word_length: float = Field(default=3.0, ge=0)
    # Highest mean length of words, in characters.
    max_mean_word_length: float = Field(default=10.0, gt=0)
    max_hashes_per_word: float = Field(default=0.1, ge=0)  # most "#" signs per word
    max_ellipses_per_word: float = Field(default=0.1, ge=0)  # most ellipses per word
    # Largest share of lines that begin with a bullet.
    max_bullet_lines: float = Field(default=0.9, ge=0, le=1)
    # Largest share of lines that end in an ellipsis.
    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1)
    # Smallest share of words that contain a letter.
    min_alphabetic_words: float = Field(default=0.8, ge=0, le=1)
    # Fewest different stop words of the document's language.
    min_stop_words: int = Field(default=2, ge=0, le=8)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        own = self.words == "spaces"
        for rule, signal, least, most in (
            ("word_count", "words", self.min_words, self.max_words),
            (
                "mean_word_length",
                "mean_word_length",
                self.min_mean_word_length,
                self.max_mean_word_length,
            ),
            ("hashes", "hashes_per_word", None, self.max_hashes_per_word),
            ("ellipses", "ellipses_per_word", None, self.max_ellipses_per_word),
            ("bullet_lines", "bullet_lines", None, self.max_bullet_lines),
            ("ellipsis_lines", "ellipsis_lines", None, self.max_ellipsis_lines),
            ("alphabetic_words", "alphabetic_words", self.min_alphabetic_words, None),
            ("stop_words", "stop_words", self.min_stop_words, None),
        ):
            yield Limit(
                rule,
                self.name_column(signal),
                least,
                most,
                languages=LANGUAGES if own and rule == "stop_words" else None,
                except_languages=UNSPACED if own and rule == "mean_word_length" else (),
            )


class GopherRepetition(CountsWords):
    """Drops text that repeats itself, by all limits of table A1; each value is a share.

    Shares of characters are of the characters of the lines, paragraphs or words, without the white
    space between them. A duplicate is a repetition of an earlier one; a word inside several
    duplicate n-grams counts once.
    """

    kind: Literal["GopherRepetition"] = "GopherRepetition"
    # Largest share of lines that repeat an earlier one.
    max_duplicate_lines: float = Field(default=0.30, ge=0, le=1)
    # Largest share of paragraphs that repeat an earlier one.
    max_duplicate_paragraphs: float = Field(default=0.30, ge=0, le=1)
    # Largest share of characters in repeated lines.
    max_duplicate_line_characters: float = Field(default=0.20, ge=0, le=1)
    # Largest share of characters in repeated paragraphs.
    max_duplicate_paragraph_characters: float = Field(default=0.20, ge=0, le=1)
    # Largest share of characters in the most frequent 2-gram of words.
    max_top_2_gram: float = Field(default=0.20, ge=0, le=1)
    # Largest share of characters in the most frequent 3-gram of words.
    max_top_3_gram: float = Field(default=0.18, ge=0, le=1)
    # Largest share of characters in the most frequent 4-gram of words.
    max_top_4_gram: float = Field(default=0.16, ge=0, le=1)
    # Largest share of characters in repeated 5-grams of words.
    max_duplicate_5_grams: float = Field(default=0.15, ge=0, le=1)
    # Largest share of characters in repeated 6-grams of words.
    max_duplicate_6_grams: float = Field(default=0.14, ge=0, le=1)
    # Largest share of characters in repeated 7-grams of words.
    max_duplicate_7_grams: float = Field(default=0.13, ge=0, le=1)
    # Largest share of characters in repeated 8-grams of words.
    max_duplicate_8_grams: float = Field(default=0.12, ge=0, le=1)
    # Largest share of characters in repeated 9-grams of words.
    max_duplicate_9_grams: float = Field(default=0.11, ge=0, le=1)
    # Largest share of characters in repeated 10-grams of words.
    max_duplicate_10_grams: float = Field(default=0.10, ge=0, le=1)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter, each named after its signal."""
        for field in type(self).model_fields:
            signal = field.removeprefix("max_")
            if signal != field:
                yield Limit(signal, self.name_column(signal), most=getattr(self, field))
