"""What a run file says of decontamination: the benchmarks, and what counts as finding one.

    [decontamination]
    folder = "benchmarks"
    fields = { gsm8k = ["question", "answer"], boolq = ["query"] }
    style = { kind = "GPT3" }

A *word* is what GPT-3 calls a gram: lower-case, ended by white space, without punctuation
(words.py). The published rules of Llama 2 and 3 speak of tokens; no tokenizer is chosen when a
corpus is curated, so here a token is a word.
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
    """A JSON Lines file (plain or gzip) with an example a line."""

    name: str = Field(pattern=NAME)  # name of the benchmark in reports
    path: Annotated[str, NOT_IDENTITY]  # JSON Lines file with one example a line, plain or gzip
    # Keys of an example that hold its texts, "a.b" for one inside another. Lists are gone through;
    # numbers are taken as they are written.
    fields: tuple[str, ...] = Field(min_length=1)
    # Whether the fields of an example are one text, in this order; otherwise no n-gram reaches from
    # one into the next.
    joined: bool = False


class GPT3(Settings):
    """A shared n-gram is a collision (Brown et al. 2020, arXiv:2005.14165, appendix C).

    n is, for each benchmark, the 5th percentile of its examples' lengths in words, from 8 to 13
    (C, "Benchmark contamination analysis"; the filter itself always took 13: set both bounds to
    it). A text shorter than n is looked for as a whole, as section 4 has it, if it has as many
    words as the lower bound; one that is shorter still is not looked for at all.

    `remove = "span"`: the collision goes, and `window` characters on each side of it. Of the pieces
    that this leaves, those below `shortest_piece` characters go as well; a document cut into more
    than `most_pieces` falls. `remove = "document"`: every document with a collision falls, what the
    authors did first and found too hard on books. n-grams that more than `most_documents` documents
    hold are common phrases: they are reported, and nothing is removed for them.

    Not published: whether pieces too short to be kept count among the ten (here they do), and that
    a document falls of which no piece is left (here it does). The paper's pieces became documents
    of their own; here they stay one.
    """

    kind: Literal["GPT3"] = "GPT3"
    remove: Remove = "span"  # what to remove: the spans that collide, or the whole document
    fewest_words: int = Field(default=8, ge=1)  # fewest words of an n-gram
    most_words: int = Field(default=13, ge=1, le=255)  # most words of an n-gram
    window: int = Field(default=200, ge=0)  # characters to remove on each side of a collision
    shortest_piece: int = Field(default=200, ge=0)  # characters of the shortest piece that is kept
    # Most pieces into which a document may be cut before it is dropped.
    most_pieces: int = Field(default=10, ge=1)
    # Most documents that may share an n-gram; more make it a common phrase, which is only reported.
    most_documents: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.fewest_words > self.most_words:
            raise ValueError(
                f"fewest_words ({self.fewest_words}) is more than most_words ({self.most_words})"
            )
        return self

    def choose_word_count(self, lengths: list[int]) -> int:
        """n, from the words of each example's longest text: 95% of examples have an n-gram.

        The percentile is that of rank floor(0.05 (examples - 1)), a length that occurs.
        """
        percentile = sorted(lengths)[(len(lengths) - 1) * 5 // 100]
        return min(max(percentile, self.fewest_words), self.most_words)

    @property
    def shortest_whole(self) -> int:
        """The words from which on a text below n is looked for as a whole."""
        return self.fewest_words


class _BySize(Settings):
    """Rules that ask how much of an example was found.

    Published to judge evaluations by what all of the corpus holds together: the report says that.
    A document is contaminated by an example if it alone holds as much: then `remove` takes the
    document, or the spans of it that it shares with such examples.
    """

    # What to remove: the spans shared with an example, or the whole document.
    remove: Remove = "document"
    words: int  # words of an n-gram
    dirty_from: Share  # share of an example that must be found for it to be contaminated

    def choose_word_count(self, lengths: list[int]) -> int:
        """n, the same for every benchmark."""
        return self.words

    @property
    def shortest_whole(self) -> int:
        """No text below n is looked for: none of these papers says that it was."""
        return self.words


class PaLM(_BySize):
    """Dirty from 70% of an example's 8-grams on (Chowdhery et al. 2022, arXiv:2204.02311, sec. 8).

    An n-gram that an example holds twice counts twice.
    """

    kind: Literal["PaLM"] = "PaLM"
    words: int = Field(default=8, ge=1, le=255)  # words of an n-gram
    # Share of an example's n-grams that must be found for it to be contaminated.
    dirty_from: Share = 0.7


class Llama3(_BySize):
    """Dirty from a share of tokens on that lie in 8-grams found (arXiv:2407.21783, section 5.1.4).

    The share was chosen for each benchmark by the gain in score that it tells apart, and is not
    published; `thresholds` has it by the benchmark's name. For others 0.5, which is that of Tulu 3
    (Lambert et al. 2024, arXiv:2411.15124, section 3.2) for the same measure.
    """

    kind: Literal["Llama3"] = "Llama3"
    words: int = Field(default=8, ge=1, le=255)  # words of an n-gram
    # Share of an example's words that must be found for it to be contaminated.
    dirty_from: Share = 0.5
    thresholds: Mapping[str, Share] = {}  # `dirty_from` of single benchmarks, by name


class Llama2(_BySize):
    """Dirty from 80% of tokens in common spans, clean below 20% (arXiv:2307.09288, app. A.6).

    A span begins with at least `words` equal words, after which up to `skips` positions may differ;
    it ends with an equal word. Positions differ one for one: nothing is inserted or left out.
    Not published: whether a differing position counts as contaminated (here it does not).
    """

    kind: Literal["Llama2"] = "Llama2"
    words: int = Field(default=10, ge=1, le=255)  # fewest words of a match (L in the paper)
    skips: int = Field(default=4, ge=0)  # most positions of a match that may differ
    clean_below: Share = 0.2  # share of an example's words below which it is clean
    # Share of an example's words that must be found for it to be contaminated.
    dirty_from: Share = 0.8

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.clean_below > self.dirty_from:
            raise ValueError(
                f"clean_below ({self.clean_below}) is more than dirty_from ({self.dirty_from})"
            )
        return self


BySize = PaLM | Llama3 | Llama2
Style = Annotated[GPT3 | PaLM | Llama3 | Llama2, Field(discriminator="kind")]


class Decontamination(Settings):
    """Which benchmarks must not be trained on, and what is done about documents that hold them."""

    benchmarks: tuple[Benchmark, ...] = ()  # benchmarks to look for, each a table
    # Folder of benchmarks: each .jsonl or .jsonl.gz file is one, named as the file; None: no
    # folder.
    folder: Annotated[str | None, NOT_IDENTITY] = None
    # Keys that hold the texts of the folder's benchmarks, by name.
    fields: Mapping[str, tuple[str, ...]] = {}
    style: Style = GPT3()  # rule by which a text counts as contaminated

    @model_validator(mode="after")
    def _there_are_benchmarks(self) -> Self:
        if not self.benchmarks and self.folder is None:
            raise ValueError("no benchmark: set `folder`, or list `benchmarks`")
        if self.fields and self.folder is None:
            raise ValueError("`fields` are those of the benchmarks in `folder`, which is not set")
        names = Counter(each.name for each in self.benchmarks)
        for name, number in names.items():
            if number > 1:
                raise ValueError(f"{number} benchmarks are named '{name}'")
        if self.folder is None and isinstance(self.style, Llama3):
            for name in self.style.thresholds:
                if name not in names:
                    hint = suggest_choice(name, list(names))
                    raise ValueError(f"style.thresholds: no benchmark is named '{name}'{hint}")
        return self
