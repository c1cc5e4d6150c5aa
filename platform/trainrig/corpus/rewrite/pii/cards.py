"""Finds payment card numbers, by the issuers' prefixes and the check digit."""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import FindPosition, Views

_SHAPE = b"000000000000"
_SHAPE_IN_GROUPS = re.compile(rb"0000[ -]0000(?:00)?[ -]0000|000000[ -]0000000000")
_BEGIN = re.compile(rb"0(?<![a0_.+-]0)(?=000(?:0{8}|(?:00)?[ -]0000))")
_CARD = re.compile(
    r"(?<![\w.+-])(?:[2-6][0-9]{11,18}|[2-6][0-9]{3}([ -])[0-9]{4}(?:\1[0-9]{4}){1,2}"
    r"(?:\1[0-9]{1,3})?|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5}|6[0-9]{5}([ -])[0-9]{10}(?:\3[0-9]{3})?"
    r"|6[0-9]{5}[ -][0-9]{13})(?![\w-]|[.,][0-9])"
)
# Prefixes and lengths of the large issuers: Visa; Mastercard; American Express; Discover; JCB;
# Diners Club; UnionPay; Mir. A tenth of all numbers passes Luhn's test, but few of those have such
# a prefix.
_ISSUED = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11}|62[0-9]{14,17}|220[0-4][0-9]{12,15}"
)
# Maestro numbers vary in length, and share prefixes with barcodes and many other numbers. So they
# count only in groups as on a card, with the length of a card number, or after a word for cards.
_MAESTRO = re.compile(r"(?:50|5[6-9]|6[0-9])[0-9]{10,17}")
_OF_A_CARD = (16, 19)  # digits
_SAID = re.compile(
    rb"\b(?:maestro|(?:debit|credit|bank|ec|payment)[ -]?cards?|cards?|kart[ae]n?(?:nummer)?|carte"
    rb"|tarjeta|carta|pan)\b[^0-9.\n<>]{0,24}\Z"
)
_LONGEST_BEFORE = 48  # characters


def find(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of card numbers."""
    if _SHAPE not in views.shape and not _SHAPE_IN_GROUPS.search(views.shape):
        return
    for found in views.find_matches(_CARD, _BEGIN):
        digits = found.group().replace(" ", "").replace("-", "")
        if not passes_luhn(digits):
            continue
        if _ISSUED.fullmatch(digits) or (
            _MAESTRO.fullmatch(digits) and _is_announced(views, found, len(digits))
        ):
            yield found.span()


def _is_announced(views: Views, found: re.Match[str], length: int) -> bool:
    if len(found.group()) > length or length in _OF_A_CARD:
        return True
    start = found.start()
    return _SAID.search(views.lower, max(0, start - _LONGEST_BEFORE), start) is not None


def passes_luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    doubled = (int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits)))
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
