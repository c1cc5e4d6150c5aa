"""Telephone numbers in the forms that tell them from other numbers.

International: a plus and 8 to 15 digits (ITU-T E.164). North American, as it is written there: area
and exchange codes do not begin with 0 or 1 (NANP). Not with spaces alone between the three groups:
so are the rows of a table written. Of other national forms, what a word before says is one: "Tel.
030 123456".
"""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import Place, Views

_INTERNATIONAL = re.compile(
    r"\+(?<![\w.+/-]\+)[1-9](?:[ .-]?(?:\([0-9]{1,4}\)|[0-9])){7,18}(?![\w/-]|[.,][0-9])"
)
_AMERICAN_SHAPE = re.compile(rb"000(?:\) ?|[.-])000[ .-]0000")
_AMERICAN = re.compile(
    r"(?<![\w.+/-])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[ .-][0-9]{4}"
    r"(?![\w/-]|[.,][0-9])"
)
# One slash, after the area code; else space, dot, dash, and brackets.
_NATIONAL_SHAPE = re.compile(
    rb"0(?<![A-Za-z0-9_.+/-]0)(?:[0)]{1,6} ?/ ?0)?(?:[ ().-]{0,3}0){2,17}(?![\w/-]|[.,]0)"
)
_NATIONAL_DIGITS = range(7, 19)  # with what relays ask to be dialled before
_LABEL = re.compile(
    rb"\b(?:(?:tele)?(?:phone?|fon|fax)|tel|t\xe9l(?:\xe9phone)?|mobile?|mobil(?:e|telefon)?|handy"
    rb"|cell|call|whatsapp|hotline|ruf(?:nummer)?|gsm|tfno|telefono|tel\xe9fono|telefax|ph)"
    rb"(?: (?:no|nr|number|us at|us))?[.:]{0,2}\s{0,3}\(?\Z"
)
_LONGEST_LABEL = 28  # characters
_AND_ANOTHER = re.compile(rb"\s{0,3}(?:or|oder|ou|and|und|et|[,;/])?\s{1,3}\(?")


def find_international(views: Views) -> Iterator[Place]:
    """The places of numbers with a plus."""
    if "+" in views.text:
        for found in _INTERNATIONAL.finditer(views.text):
            if 8 <= sum(map(str.isdigit, found.group())) <= 15:
                yield found.span()


def find_american(views: Views) -> Iterator[Place]:
    """The places of numbers of the United States, Canada and their neighbours."""
    if _AMERICAN_SHAPE.search(views.shape):
        for found in _AMERICAN.finditer(views.text):
            yield found.span()


def find_labelled(views: Views) -> Iterator[Place]:
    """The places of numbers of any form after a word that announces one, or after such a number."""
    last = -1
    for found in _NATIONAL_SHAPE.finditer(views.shape):
        start, end = found.span()
        if found.group().count(b"0") not in _NATIONAL_DIGITS:
            continue
        another = last >= 0 and _AND_ANOTHER.fullmatch(views.lower, last, start)
        if another or _LABEL.search(views.lower, max(0, start - _LONGEST_LABEL), start):
            last = end
            yield start - views.lower.endswith(b"(", 0, start), end
