"""Pages of reference documentation, known by the declarations of functions and methods on them.

The trees learnt from news and blogs, where a short line without a full stop is furniture. On a
page that documents an interface such lines are the content: `read(name, pwd=None)`, `public void
close() throws IOException`. So what the trees keep there is held against all of the main content.
"""

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.verdict import ScoredBlocks

# A name and a bracket at once (or, as Doxygen writes it, with spaces around the bracket).
_CALL: Final = re.compile(rb"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d)")
# The same of text, but not in "Freund(e)", "person(s)".
_NAMED: Final = re.compile(
    r"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d|(?:e|s|n|r|en|es|in|innen)\))"
)
# What languages and generators put behind the last bracket of a declaration.
_BEHIND: Final = re.compile(
    r"(?:\[source\]|[\s#¶:;{])*"
    r"(?:(?:->|→|throws\b|const\b|noexcept\b|where\b|=).{0,200}|:[\w.<>\[\]|?, ]{1,80})?\Z"
)
_LEAST: Final = 3  # declarations on a page of reference
_LEAST_SHARE: Final = 0.05  # of a page's blocks
_ENOUGH: Final = 0.9  # of the characters, and of the declarations
_LITTLE: Final = 100  # characters: what was dropped may be "Previous topic" and "Next topic"


def is_gutted(main: ScoredBlocks) -> bool:
    """Whether `main` is a page of reference of which the trees drop more than a tenth."""
    if bool(main.kept.all()) or len(_CALL.findall(main.page)) < _LEAST:
        return False
    declares = np.array([_declares(line) for line in main.lines], np.bool_)
    count = int(declares.sum())
    if count < max(_LEAST, _LEAST_SHARE * len(declares)):
        return False
    dropped = int(main.characters[~main.kept].sum())
    return _lacks(main.kept[declares]) or (
        dropped >= _LITTLE and dropped > (1 - _ENOUGH) * int(main.characters.sum())
    )


def _lacks(kept: NDArray[np.bool_]) -> bool:
    return int(kept.sum()) < _ENOUGH * len(kept)


def _declares(line: str) -> bool:
    """Whether `line` is `name(…)` to its end, with what may stand before and behind that."""
    end = line.rfind(")")
    if end < 0 or not _BEHIND.match(line, end + 1):
        return False
    return _NAMED.search(line, 0, end + 1) is not None
