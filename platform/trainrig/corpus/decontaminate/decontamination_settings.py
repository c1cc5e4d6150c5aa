"""Run-file settings of decontamination: the benchmarks, and when a text counts as contaminated.

In a run file:

[decontamination]
    folder = "benchmarks"
    fields = { gsm8k = ["question", "answer"], boolq = ["query"] }
    style = { kind = "GPT3" }

A *word* is what the GPT-3 paper calls a gram: lower-case, separated by white space, without
punctuation (benchmark_words.py). The published rules of Llama 2 and 3 count tokens. No tokenizer is
chosen yet when a corpus is curated, so words are counted here instead.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import NOT_IDENTITY, Settings, suggest_choice

Remove = Literal["span", "document", "nothing"]
Share = Annotated[float, Field(gt=0, le=1)]
NAME = r"^[A-Za-z0-9._-]+$"


class Benchmark(Settings):
    """A benchmark: a JSON Lines file (plain or gzip) with one example per line."""

    name: str = Field(pattern=NAME)  # name of the benchmark in reports
    path: Annotated[str, NOT_IDENTITY]  # JSON Lines file with one example a line, plain or gzip
    # Keys of an example that hold its texts; "a.b" for a key inside a table. All items of lists are
    # used, and numbers are used as they are written.
    fields: tuple[str, ...] = Field(min_length=1)
    # Whether the fields of an example are joined into one text, in this order. If not, no n-gram
    # crosses from one field into the next.
    joined: bool = False


class GPT3(Settings):
    """Rule of GPT-3: a shared n-gram is a collision (arXiv:2005.14165, appendix C).

    The source is Brown et al. 2020. n is chosen per benchmark: the 5th percentile of its examples'
    lengths in words, from 8 to 13 (appendix C, "Benchmark contamination analysis"). The paper's
    filter itself always took 13: set both bounds to 13 for that. A text shorter than n is searched
    for as a whole, as in section 4 of the paper, if it has at least `fewest_words` words. A shorter
    text is not searched for.

    With `remove = "span"`, the collision and `window` characters on each side of it are removed. Of
    the remaining pieces, those shorter than `shortest_piece` characters are removed too, and a
    document cut into more than `most_pieces` pieces is dropped. With `remove = "document"`, every
    document with a collision is dropped; the authors did that first, and found it too strict for
    books. An n-gram in more than `most_documents` documents is a common phrase: it is reported, and
    nothing is removed for it.

    The paper leaves two things open. Here, pieces too short to keep count towards `most_pieces`,
    and a document without any remaining piece is dropped. In the paper each piece became a
    document; here the pieces stay one document.
    """

    kind: Literal["GPT3"] = "GPT3"
    remove: Remove = "span"  # remove the spans that collide, the whole document, or nothing
    fewest_words: int = Field(default=8, ge=1)  # fewest words of an n-gram
    most_words: int = Field(default=13, ge=1, le=255)  # most words of an n-gram
    window: int = Field(default=200, ge=0)  # characters to remove on each side of a collision
    shortest_piece: int = Field(default=200, ge=0)  # characters of the shortest piece that is kept
    # Most pieces into which a document may be cut before it is dropped.
    most_pieces: int = Field(default=10, ge=1)
    # Most documents that may share an n-gram; more make it a common phrase, which is only reported.
    most_documents: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.fewest_words > self.most_words:
            raise ValueError(
                f"fewest_words ({self.fewest_words}) must not exceed most_words ({self.most_words})"
            )
        return self

    def choose_word_count(self, lengths: list[int]) -> int:
        """Return n for a benchmark, from the length in words of each example's longest text.

        n is the 5th percentile, within the bounds, so 95% of the examples have an n-gram. The
        percentile has rank floor(0.05 (examples - 1)), so it is a length that occurs.
        """
        percentile = sorted(lengths)[(len(lengths) - 1) * 5 // 100]
        return min(max(percentile, self.fewest_words), self.most_words)

    @property
    def shortest_whole(self) -> int:
        """Fewest words of a text below n words that is searched for as a whole."""
        return self.fewest_words


class _BySize(Settings):
    """Base of rules that measure how much of an example was found.

    The papers use these rules to judge evaluation scores, by what the whole corpus holds; the
    report shows that share. Here a single document counts as contaminated if it alone holds as
    much. Then `remove` drops the document, or removes the spans it shares with such examples.
    """

    # Remove the spans shared with an example, the whole document, or nothing.
    remove: Remove = "document"
    words: int  # words of an n-gram
    dirty_from: Share  # share of an example that must be found for it to be contaminated

    def choose_word_count(self, lengths: list[int]) -> int:
        """Return n, which is the same for every benchmark."""
        return self.words

    @property
    def shortest_whole(self) -> int:
        """Fewest words of a text that is searched for: n, as none of the papers says otherwise."""
        return self.words


class PaLM(_BySize):
    """Rule of PaLM: dirty from 70% of an example's 8-grams on (arXiv:2204.02311, section 8).

    The source is Chowdhery et al. 2022. An n-gram that occurs twice in an example counts twice.
    """

    kind: Literal["PaLM"] = "PaLM"
    words: int = Field(default=8, ge=1, le=255)  # words of an n-gram
    # Share of an example's n-grams that must be found for it to be contaminated.
    dirty_from: Share = 0.7


class Llama3(_BySize):
    """Rule of Llama 3: dirty from a share of tokens in matched 8-grams (arXiv:2407.21783, 5.1.4).

    The authors chose the share per benchmark, where it best separates scores, and did not publish
    it; set it in `thresholds` by the benchmark's name. The default, 0.5, is the share of Tulu 3
    (Lambert et al. 2024, arXiv:2411.15124, section 3.2) for the same measure.
    """

    kind: Literal["Llama3"] = "Llama3"
    words: int = Field(default=8, ge=1, le=255)  # words of an n-gram
    # Share of an example's words that must be found for it to be contaminated.
    dirty_from: Share = 0.5
    thresholds: Mapping[str, Share] = {}  # `dirty_from` of single benchmarks, by name


class Llama2(_BySize):
    """Rule of Llama 2: dirty from 80% of tokens in matches, clean below 20% (arXiv:2307.09288).

    The source is appendix A.6. A match begins with at least `words` equal words, after which up to
    `skips` positions may differ, and ends with an equal word. Positions differ one for one: no word
    is inserted or left out.
    The paper leaves open whether a differing position counts as contaminated; here it does not.
    """

    kind: Literal["Llama2"] = "Llama2"
    words: int = Field(default=10, ge=1, le=255)  # fewest words of a match (L in the paper)
    skips: int = Field(default=4, ge=0)  # most positions of a match that may differ
    clean_below: Share = 0.2  # share of an example's words below which it is clean
    # Share of an example's words that must be found for it to be contaminated.
    dirty_from: Share = 0.8

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.clean_below > self.dirty_from:
            raise ValueError(
                f"clean_below ({self.clean_below}) must not exceed dirty_from ({self.dirty_from})"
            )
        return self


BySize = PaLM | Llama3 | Llama2
Style = Annotated[GPT3 | PaLM | Llama3 | Llama2, Field(discriminator="kind")]


class Decontamination(Settings):
    """Benchmarks that must not be trained on, and how documents with their text are treated."""

    benchmarks: tuple[Benchmark, ...] = ()  # benchmarks to search for, each a table
    # Folder of benchmarks: each .jsonl or .jsonl.gz file is a benchmark named after the file. None:
    # no folder.
    folder: Annotated[str | None, NOT_IDENTITY] = None
    # Keys that hold the texts of each benchmark in `folder`, by the benchmark's name.
    fields: Mapping[str, tuple[str, ...]] = {}
    style: Style = GPT3()  # rule by which a text counts as contaminated

    @model_validator(mode="after")
    def _check_benchmarks(self) -> Self:
        if not self.benchmarks and self.folder is None:
            raise ValueError("no benchmark is set; set `folder`, or list `benchmarks`")
        if self.fields and self.folder is None:
            raise ValueError(
                "`fields` applies to the benchmarks in `folder`, which is not set; set it, or "
                "remove `fields`"
            )
        names = Counter(benchmark.name for benchmark in self.benchmarks)
        for name, number in names.items():
            if number > 1:
                raise ValueError(
                    f"{number} benchmarks are named '{name}'; give each a different name"
                )
        if self.folder is None and isinstance(self.style, Llama3):
            for name in self.style.thresholds:
                if name not in names:
                    hint = suggest_choice(name, list(names))
                    raise ValueError(f"style.thresholds: no benchmark is named '{name}'{hint}")
        return self
