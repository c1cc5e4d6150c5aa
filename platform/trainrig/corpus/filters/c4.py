"""C4's rules for pages (Raffel et al. 2020, JMLR 21:140, section 2.2).

Implementations differ. The authors' code (TensorFlow Datasets, `c4_utils.py`) requires 3 sentences,
on lines of 5 words; datatrove swaps the numbers, as the paper's first version does. The code looks
for "lorem ipsum" and "{" only in lines that it has not dropped yet; the paper and this filter look
in the whole page. The code's sentences are NLTK's, datatrove's are spaCy's, and this filter's are
those of signals/sentences.py. The list of bad words may not be redistributed: name a file of them
in the scorer `BadWords`. In place of langdetect at 99% English, use the filter `Language`.

Lines that C4 would drop are left out of the counts (signals/c4.py) but stay in the text; to remove
them, add `C4Lines` to the rewrites.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.corpus.filters.word_rules import CountsWords
from trainrig.corpus.limits import Limit


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
