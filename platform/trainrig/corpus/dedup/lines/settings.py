"""What counts as a line that too many documents have."""

from typing import Literal

from pydantic import Field

from trainrig.config import Settings

COMMON_LINES = "common_lines"  # `by` of the cuts


class CommonLines(Settings):
    """Cuts out lines that the corpus has too often: menus, notices, calls to subscribe.

    Lines are the same when their normal forms are: lower case, each digit 0, without punctuation
    and accents, runs of white space one blank.
    """

    kind: Literal["CommonLines"] = "CommonLines"
    # What is counted and cut: lines, or paragraphs, which blank lines set apart.
    unit: Literal["line", "paragraph"] = "line"
    # What is counted: a line once for each document that has it, or each time that it is there.
    count: Literal["documents", "occurrences"] = "documents"
    # Most documents (or occurrences) that a line may have and stay (Llama 3, arXiv:2407.21783).
    most: int = Field(default=6, ge=1)
    # Characters of the shortest line that is cut, however common ("Yes." in a dialogue stays).
    min_characters: int = Field(default=10, ge=1)
    keep_first: bool = False  # whether the first of all, in the keep order, stays
