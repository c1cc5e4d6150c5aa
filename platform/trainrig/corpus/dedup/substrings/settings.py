"""What counts as a span that was there before."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings

EXACT_SUBSTRINGS = "exact_substrings"  # `by` of the cuts


class ExactSubstrings(Settings):
    """Cuts out all but the first of the spans that occur more than once, to the byte.

    Lee et al. 2021 (arXiv:2107.06499, section 4.1) cut from 50 tokens of a byte-pair vocabulary on;
    of English text those are about 200 bytes. Bytes are those of UTF-8.
    """

    kind: Literal["ExactSubstrings"] = "ExactSubstrings"
    # Length of the shortest repeated span that is cut, in bytes of UTF-8.
    min_bytes: int = Field(default=200, ge=2)
    # Bytes that a worker may use for a suffix array; what is cut does not depend on it.
    memory: Annotated[int, NOT_IDENTITY] = Field(default=2 * 2**30, ge=1)
