"""Run-file settings of the removal of repeated substrings."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings

EXACT_SUBSTRINGS = "exact_substrings"  # `by` of the removed spans


class ExactSubstrings(Settings):
    """Removes byte-exact repeats of long spans, except for the first occurrence.

    Lee et al. 2021 (arXiv:2107.06499, section 4.1) removed repeats of at least 50 tokens of a
    byte-pair vocabulary, which is about 200 bytes of English text in UTF-8.
    """

    kind: Literal["ExactSubstrings"] = "ExactSubstrings"
    # Length in bytes of UTF-8 of the shortest repeated span that is removed.
    min_bytes: int = Field(default=200, ge=2)
    # Bytes of memory that a worker may use for a suffix array; the result does not depend on it.
    memory: Annotated[int, NOT_IDENTITY] = Field(default=2 * 2**30, ge=1)
