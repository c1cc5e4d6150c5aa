"""Finds US social security numbers with an area, group and serial that can be issued.

No area is 000, 666 or 9xx, no group 00, no serial 0000 (20 CFR 422.103; SSA, "Social Security
Number Randomization"). With dashes the format alone suffices; with spaces or without separators, a
word must announce the number.
"""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import FindPosition, Views

_SHAPE = re.compile(rb"000-00-0000|000 00 0000|000000000")
_BEGIN = re.compile(rb"0(?<![a0_.+/-]0)(?=00-00-0000|00 00 0000|00000000)")
_SSN = re.compile(
    r"(?<![\w.+/-])(?<!\+[0-9] )(?<!\+[0-9]{2} )(?<!\+[0-9]{3} )"
    r"(?!000|666|9)[0-9]{3}([ -]?)(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?![\w/-]|[.,][0-9])"
)
_SAID = re.compile(
    rb"\b(?:ssns?|soc(?:ial)?\.? sec(?:urity)?\.?)(?: (?:numbers?|nos?\.?|nr\.?|cards?|#))?"
    rb"[^0-9.\n<>]{0,24}\Z"
)
_LONGEST_BEFORE = 60  # characters
# Printed in advertisements and therefore void.
_ADVERTISED = frozenset({"078051120", "219099999"})


def find(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of social security numbers."""
    if not _SHAPE.search(views.shape):
        return
    for found in views.find_matches(_SSN, _BEGIN):
        start = found.start()
        if re.sub("[ -]", "", found.group()) in _ADVERTISED:
            continue
        if found.group(1) == "-" or _SAID.search(
            views.lower, max(0, start - _LONGEST_BEFORE), start
        ):
            yield found.span()
