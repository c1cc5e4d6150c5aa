"""Run-file settings of the removal of common lines."""

from typing import Literal

from pydantic import Field

from trainrig.config import Settings

COMMON_LINES = "common_lines"  # `by` of the removed spans


class CommonLines(Settings):
    """Removes lines that the corpus has too often, such as menus, notices and calls to subscribe.

    Lines are the same if their normal forms are equal: lower case, each digit 0, without
    punctuation and accents, each run of white space as one space.
    """

    kind: Literal["CommonLines"] = "CommonLines"
    # Unit that is counted and removed: lines, or paragraphs separated by blank lines.
    unit: Literal["line", "paragraph"] = "line"
    # What is counted: the documents that contain a line, or all its occurrences.
    count: Literal["documents", "occurrences"] = "documents"
    # Most documents (or occurrences) that a line may have before it is removed (Llama 3,
    # arXiv:2407.21783).
    most: int = Field(default=6, ge=1)
    # Fewest characters of a line that may be removed; shorter lines always stay ("Yes.").
    min_characters: int = Field(default=10, ge=1)
    keep_first: bool = False  # keep the first occurrence in the keep order
