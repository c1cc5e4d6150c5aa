"""C4's rules for pages (Raffel et al. 2020, JMLR 21:140, section 2.2).

Readings differ. The authors' code (TensorFlow Datasets, `c4_utils.py`) wants 3 sentences of lines
of 5 words; datatrove has the numbers the other way round, as the paper's first version has. The
code looks for "lorem ipsum" and "{" only in lines that it has not dropped yet; the paper, and we,
in the whole page. Its sentences are NLTK's, datatrove's are spaCy's, ours are of
signals/sentences.py. The list of bad words is nobody's to pass on: name a file to the scorer
`BadWords`. For langdetect's 99% of English there is `Language`.

The page's lines are counted as if cut (signals/c4.py); to cut them in fact, put `C4Lines` among
the rewrites.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.corpus.filters.word_rules import CountsWords
from trainrig.corpus.limits import Limit


class C4(CountsWords):
    """Drops pages of too few sentences, of placeholder text, and of code."""

    kind: Literal["C4"] = "C4"
    # Fewest sentences, on lines that C4 keeps; datatrove has 5.
    min_sentences: int = Field(default=3, ge=0)
    # Whether a line must end as a sentence does and have 5 words; otherwise 3 words make a line.
    terminal_punctuation: bool = True
    max_lorem_ipsum: int = Field(default=0, ge=0)  # most lines with "lorem ipsum"
    max_curly_brackets: int = Field(default=0, ge=0)  # most lines with a curly bracket
    # Most different bad words, C4's own value being 0; needs the scorer `BadWords`; None: no rule.
    max_bad_words: int | None = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Its rules."""
        any_end = "" if self.terminal_punctuation else "_any_end"
        yield Limit("sentences", self.name_column(f"c4_sentences{any_end}"), self.min_sentences)
        # datatrove asks only the lines that the rules before have not dropped.
        lines = any_end if self.words == "datatrove" else ""
        for rule, most in (
            ("lorem_ipsum", self.max_lorem_ipsum),
            ("curly_brackets", self.max_curly_brackets),
        ):
            yield Limit(rule, self.name_column(rule + lines), most=most)
        if self.max_bad_words is not None:
            yield Limit("bad_words", "bad_words", most=self.max_bad_words)
