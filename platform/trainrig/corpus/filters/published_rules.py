"""Filters with the rules of published data sets: Gopher, C4, FineWeb and RefinedWeb.

*Words.* "spaces" are trainrig's words: runs of characters without white space
(signals/text_words.py). "datatrove" are the words of datatrove 0.10, which are spaCy's
English tokens, with all other differences of its filters: use them for verdicts equal to
datatrove's. They cost more, are measured by the extra `trainrig_contrib.datatrove_signals`, and
need spaCy, which the extra `datatrove` brings.

*Gopher* (Rae et al. 2021, arXiv:2112.11446, appendix A1.1, table A1). datatrove implements the
rules differently, which `words = "datatrove"` follows. Its words are spaCy's tokens, so a full stop
is a word without a letter. Counts of words leave out tokens of punctuation. Its stop words are
English for every language, compared with case. Shares of characters are of the whole text, with
white space. The top n-gram may occur only once. N-grams that overlap a duplicate n-gram are
skipped. Its bullets are "•" and "-".

*C4* (Raffel et al. 2020, JMLR 21:140, section 2.2). Implementations differ. The authors' code
(TensorFlow Datasets, `c4_utils.py`) requires 3 sentences, on lines of 5 words; datatrove swaps the
numbers, as the paper's first version does. The code looks for "lorem ipsum" and "{" only in lines
that it has not dropped yet; the paper and this filter look in the whole page. The code's sentences
are NLTK's, datatrove's are spaCy's, and this filter's are those of signals/c4_signals.py. The list
of bad words may not be redistributed: name a file of them in the scorer `BadWords`. In place of
langdetect at 99% English, use the filter `Language`. Lines that C4 would drop are left out of the
counts (signals/c4_signals.py) but stay in the text; to remove them, add `C4Lines` to the rewrites.

*FineWeb* (Penedo et al. 2024, arXiv:2406.17557, section 3.6). The paper drops a page with 10% of
its characters in repeated lines; datatrove's default is 1%. datatrove also limits new lines per
word, to drop lists. The paper does not name this rule, but the data were made with it, so it is on
here. Unless `words` is "datatrove", lines are measured without the white space around them, shares
are of the lines' characters, a line of "..." ends no sentence, and a closing quotation mark after
the end mark is accepted (for datatrove's lines see datatrove_counts.py).

*RefinedWeb* (Penedo et al. 2023, arXiv:2306.01116, appendix G): rules for URLs, and for pages of
which the rewrite `RefinedWebLines` removes too much.
"""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.corpus.filters.general_rules import FilterSettings
from trainrig.corpus.limits import Limit
from trainrig.corpus.signals.text_words import UNSPACED
from trainrig.corpus.signals.word_signals import LANGUAGES
from trainrig.extras import load_extra
from trainrig.optional_packages import describe_install

WordRule = Literal["spaces", "datatrove"]
PREFIX = "datatrove_"  # begins the name of each column that `words = "datatrove"` reads


def load_datatrove() -> ModuleType:
    """Return the extra with `DATATROVE_SIGNALS`, the columns, and `measure_datatrove`."""
    return load_extra("datatrove_signals.datatrove_columns", 'words = "datatrove"')


class CountsWords(FilterSettings):
    """A filter that supports both ways to count words."""

    # How words are counted: "spaces" splits at white space; "datatrove" follows datatrove and needs
    # the extra `datatrove`.
    words: WordRule = "spaces"

    @model_validator(mode="after")
    def _check_spacy_installed(self) -> Self:
        if self.words == "datatrove" and importlib.util.find_spec("spacy") is None:
            raise ValueError(
                'words = "datatrove" requires spaCy, which is not installed; '
                f'run `{describe_install("datatrove")}`, or set words = "spaces"'
            )
        return self

    def name_column(self, signal: str) -> str:
        """Return the name of the column with `signal` for the chosen way to count words."""
        return PREFIX + signal if self.words == "datatrove" else signal


class GopherQuality(CountsWords):
    """Drops text that is too short, too long, or not made of sentences.

    These are all quality rules of the paper. Stop words are those of the document's language;
    without a list for it (signals/word_signals.py) the rule does not apply. Different stop words
    are counted, as in datatrove. The mean word length does not apply to languages without spaces.
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


class C4(CountsWords):
    """Drops pages with too few sentences, with placeholder text, or with code."""

    kind: Literal["C4"] = "C4"
    # Fewest sentences, on lines that C4 keeps; datatrove uses 5.
    min_sentences: int = Field(default=3, ge=0)
    # Whether a line must have 5 words and end as a sentence does; otherwise 3 words are enough.
    terminal_punctuation: bool = True
    max_lorem_ipsum: int = Field(default=0, ge=0)  # most lines that contain "lorem ipsum"
    max_curly_brackets: int = Field(default=0, ge=0)  # most lines that contain a curly bracket
    # Most different bad words. C4 allows 0. Needs the scorer `BadWords`; None: no rule.
    max_bad_words: int | None = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        any_end = "" if self.terminal_punctuation else "_any_end"
        yield Limit("sentences", self.name_column(f"c4_sentences{any_end}"), self.min_sentences)
        # datatrove searches only the lines that its earlier rules have kept.
        lines = any_end if self.words == "datatrove" else ""
        for rule, most in (
            ("lorem_ipsum", self.max_lorem_ipsum),
            ("curly_brackets", self.max_curly_brackets),
        ):
            yield Limit(rule, self.name_column(rule + lines), most=most)
        if self.max_bad_words is not None:
            yield Limit("bad_words", "bad_words", most=self.max_bad_words)


class FineWeb(CountsWords):
    """Drops lists, menus and pages with broken or repeated lines."""

    kind: Literal["FineWeb"] = "FineWeb"
    # Smallest share of lines that end with a terminal punctuation mark.
    min_terminal_lines: float = Field(default=0.12, ge=0, le=1)
    max_short_lines: float = Field(default=0.67, ge=0, le=1)  # largest share of short lines
    # Largest share of characters in repeated lines; datatrove uses 0.01.
    max_duplicate_line_characters: float = Field(default=0.1, ge=0, le=1)
    max_new_lines_per_word: float = Field(default=0.3, ge=0)  # most new lines per word
    # Whether to measure the text that datatrove's C4 filter keeps, as was done for FineWeb.
    after_c4: bool = False

    @model_validator(mode="after")
    def _check_after_c4(self) -> Self:
        if self.after_c4 and self.words != "datatrove":
            raise ValueError(
                'after_c4 requires words = "datatrove"; '
                'with words = "spaces", add C4Lines to the rewrites'
            )
        return self

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        text = "c4_" if self.after_c4 else ""
        for signal, least, most in (
            ("terminal_lines", self.min_terminal_lines, None),
            ("short_lines", None, self.max_short_lines),
            (self._name_duplicates_signal(), None, self.max_duplicate_line_characters),
            ("new_lines_per_word", None, self.max_new_lines_per_word),
        ):
            rule = signal.removeprefix("fineweb_")
            yield Limit(rule, self.name_column(text + signal), least, most)

    def _name_duplicates_signal(self) -> str:
        # datatrove's two filters count duplicates by different definitions of a line.
        own = "duplicate_line_characters"
        return f"fineweb_{own}" if self.words == "datatrove" else own


class RefinedWeb(FilterSettings):
    """Drops pages that lost too many words to line rules. Needs the rewrite `RefinedWebLines`."""

    kind: Literal["RefinedWeb"] = "RefinedWeb"
    # Largest share of words that the line rules may have removed.
    max_removed_words: float = Field(default=0.05, ge=0, le=1)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit of this filter."""
        most = round(10_000 * self.max_removed_words)
        yield Limit("removed_words", "refinedweb_removed_per_10000", most=most)


class Url(FilterSettings):
    """Drops pages by their URL alone. Needs blocklists (`corpus.urls.blocklist`).

    Without a list, its rule drops nothing. Known difference: the paper weights the words of the
    soft list and does not say how; here each counts 1, as in datatrove and DCLM.
    """

    kind: Literal["Url"] = "Url"
    # Most different words of the list `strict_words`, found anywhere in the URL.
    max_strict_words: int = Field(default=0, ge=0)
    # Most different words of the list `hard_words`, found as whole words.
    max_hard_words: int = Field(default=0, ge=0)
    # Most different words of the list `soft_words`, found as whole words.
    max_soft_words: int = Field(default=1, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("domain", "url_blocked_domain", most=0)
        yield Limit("strict_words", "url_strict_words", most=self.max_strict_words)
        yield Limit("hard_words", "url_hard_words", most=self.max_hard_words)
        yield Limit("soft_words", "url_soft_words", most=self.max_soft_words)
