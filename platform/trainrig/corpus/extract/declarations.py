"""Recognises reference documentation by the declarations of functions and methods on a page.

The trees were trained on news and blogs, where a short line without a full stop is furniture. In
reference documentation such lines are the content: `read(name, pwd=None)`, `public void close()
throws IOException`. So what the trees keep of such a page is compared with all of its main content.
"""

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.verdict import ScoredBlocks

# A name directly followed by a bracket (or, as Doxygen writes it, with spaces around the bracket).
_CALL: Final = re.compile(rb"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d)")
# The same for decoded text, but not for "Freund(e)" and "person(s)".
_NAMED: Final = re.compile(
    r"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d|(?:e|s|n|r|en|es|in|innen)\))"
)
# Text that languages and generators write after the closing bracket of a declaration.
_BEHIND: Final = re.compile(
    r"(?:\[source\]|[\s#¶:;{])*"
    r"(?:(?:->|→|throws\b|const\b|noexcept\b|where\b|=).{0,200}|:[\w.<>\[\]|?, ]{1,80})?\Z"
)
_LEAST: Final = 3  # declarations on a page of reference documentation
_LEAST_SHARE: Final = 0.05  # declarations as a share of the page's blocks
_ENOUGH: Final = 0.9  # smallest share of characters, and of declarations, that the trees must keep
# characters: dropping fewer is accepted, such as "Previous topic" and "Next topic"
_LITTLE: Final = 100


def is_gutted(main: ScoredBlocks) -> bool:
    """Return whether `main` is reference documentation of which the trees drop over a tenth."""
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
    """Return whether `line` is a declaration `name(…)`, with the usual words before and after."""
    end = line.rfind(")")
    if end < 0 or not _BEHIND.match(line, end + 1):
        return False
    return _NAMED.search(line, 0, end + 1) is not None
