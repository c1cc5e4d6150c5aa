"""The keys by which CCNet takes paragraphs for the same (Wenzek et al. 2020, arXiv:1911.00359,
section 3.1), in two published readings.

The paper drops all Unicode punctuation and all accents. Its code (cc_net, `text_normalizer.py`)
drops a list of 33 signs, none of them ASCII and one of them the digit "１", and leaves accents: so
"Fin." and "Fin" differ, as do "Été" and "Ete". A paragraph is a line.
"""

import functools
import hashlib
import re
import unicodedata
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reading = Literal["paper", "cc_net"]

_DIGIT = re.compile(r"\d")
_LISTED = re.compile(
    "[，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►]|[\x00-\x1f\x7f-\x9f]"
)


def paragraph_keys(text: str, reading: Reading = "paper") -> NDArray[np.uint64]:
    """One key for each line of `text`: the first 64 bits of the SHA-1 of what it is normalised to.

    Equal keys are equal paragraphs, but for one pair in 2^64. Lines without anything but what the
    reading drops have the key of "".
    """
    normal = _as_in_the_paper if reading == "paper" else _as_in_cc_net
    digests = (
        hashlib.sha1(normal(line.strip()).encode("utf-8", "surrogatepass")).digest()[:8]
        for line in text.split("\n")
    )
    return np.frombuffer(b"".join(digests), "<u8")


def _as_in_the_paper(line: str) -> str:
    line = line.lower()
    if not line.isascii():
        line = unicodedata.normalize("NFD", line)
    return line.translate(_folds())


def _as_in_cc_net(line: str) -> str:
    return _LISTED.sub("", _DIGIT.sub("0", line.lower()))


@functools.cache
def _folds() -> dict[int, str | None]:
    """Digits to 0; punctuation (Unicode's P), accents (Mn) and controls (Cc) to nothing."""
    folds: dict[int, str | None] = {}
    for code in range(0x20000):
        category = unicodedata.category(chr(code))
        if category == "Nd":
            folds[code] = "0"
        elif category[0] == "P" or category in ("Mn", "Cc"):
            folds[code] = None
    return folds
