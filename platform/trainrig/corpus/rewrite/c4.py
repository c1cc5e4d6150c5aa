"""The line rules of C4 (Raffel et al. 2020, JMLR 21:140, section 2.2), in two published readings.

They differ where nobody would look. Its authors' code (TensorFlow Datasets, `c4_utils.py`) asks a
line for 5 words and a page for 3 sentences; datatrove, which FineWeb was made with, has the two
numbers the other way round; it takes ' for an end of a sentence as well; and it
counts words before citations are cut out, not after.

Both look at the end of a line before they would cut the space that a citation has left there: so
"As was shown. [1]" goes for want of an end mark, and so it does here.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_ELLIPSIS = "..."
_POLICY = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_JAVASCRIPT = "javascript"
_LOREM_IPSUM = "lorem ipsum"


@dataclass(frozen=True)
class _Reading:
    """Where the published codes differ."""

    min_words: int
    end_marks: tuple[str, ...]
    words_before_citations_are_cut: bool


_READINGS = {
    "tfds": _Reading(5, (".", "?", "!", '"'), words_before_citations_are_cut=False),
    "datatrove": _Reading(3, (".", "?", "!", '"', "'"), words_before_citations_are_cut=True),
}


class C4Lines(Settings):
    """Keeps the lines that C4 keeps, without citations, and counts what the others fell by.

    Each line falls by the first rule that it breaks, in the order of the fields. What C4 drops
    whole pages for is counted (`c4_lorem_ipsum`, `c4_curly_brackets`: lines that would have) and
    left for a filter.
    """

    kind: Literal["C4Lines"] = "C4Lines"
    reading: Literal["tfds", "datatrove"] = "tfds"
    max_word_length: int = Field(default=1000, gt=0)  # characters
    citations: bool = True  # cut out [1], [], [edit], [citation needed]
    terminal_punctuation: bool = True  # drop lines that end in no end mark, or in "..."
    min_words: int | None = Field(default=None, ge=0)  # per line; None: the reading's
    javascript: bool = True  # drop lines that name it
    policy: bool = True  # drop lines that speak of cookies, privacy, terms of use

    columns: ClassVar[tuple[str, ...]] = (
        "c4_long_words",  # lines, each
        "c4_unended",
        "c4_few_words",
        "c4_javascript",
        "c4_policy",
        "c4_lorem_ipsum",
        "c4_curly_brackets",
        "c4_citations",  # citations, of the lines whose words are not too long
    )

    def apply(self, text: str, language: str) -> tuple[str, dict[str, int]]:
        """`text` without what falls, and the counts. Not idempotent: "[[1]2]" is cut twice."""
        counts = dict.fromkeys(self.columns, 0)
        reading = _READINGS[self.reading]
        least = reading.min_words if self.min_words is None else self.min_words
        longest, ended, end_marks = (
            self.max_word_length,
            self.terminal_punctuation,
            reading.end_marks,
        )
        cites = self.citations and "[" in text
        # Most pages speak of nothing that the rules ask for: one look at the whole spares all
        # others. Cutting citations can bring words together ("java[1]script").
        whole = _CITATION.sub("", text) if cites else text
        topics = _topics(whole.lower())
        kept, long_words, unended, few_words, citations = [], 0, 0, 0, 0
        for raw in text.splitlines():
            line = counted = raw.strip()
            # No word is longer than its line.
            if len(line) > longest and max(map(len, line.split())) > longest:
                long_words += 1
                continue
            if cites and "[" in line:
                line, cut = _CITATION.subn("", line)
                citations += cut
                if not reading.words_before_citations_are_cut:
                    counted = line
            if ended and (not line.endswith(end_marks) or line.endswith(_ELLIPSIS)):
                unended += 1
            # Not more pieces than it takes to know.
            elif len(counted.split(None, least - 1)) < least:
                few_words += 1
            elif topics and (rule := self._fallen(line, counts)):
                counts[rule] += 1
            else:
                kept.append(line)
        counts["c4_long_words"], counts["c4_unended"] = long_words, unended
        counts["c4_few_words"], counts["c4_citations"] = few_words, citations
        return "\n".join(kept).strip(), counts

    def _fallen(self, line: str, counts: dict[str, int]) -> str | None:
        """The column of the rule of topic that drops `line`; counts what drops pages."""
        lower = line.lower()
        if _LOREM_IPSUM in lower:
            counts["c4_lorem_ipsum"] += 1
        if self.javascript and _JAVASCRIPT in lower:
            return "c4_javascript"
        if "{" in line:
            counts["c4_curly_brackets"] += 1
        if self.policy and any(phrase in lower for phrase in _POLICY):
            return "c4_policy"
        return None


def _topics(lower: str) -> bool:
    return "{" in lower or any(topic in lower for topic in (_JAVASCRIPT, _LOREM_IPSUM, *_POLICY))
