"""Numbers of payment cards: of an issuer, and with the right check digit."""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import Place, Views

_SHAPE = b"0000000000000"
_SHAPE_IN_GROUPS = re.compile(rb"0000[ -]0000(?:00)?[ -]0000")
_CARD = re.compile(
    r"(?<![\w.+-])(?:[2-6][0-9]{12,18}|[2-6][0-9]{3}([ -])[0-9]{4}(?:\1[0-9]{4}){2}"
    r"|3[47][0-9]{2}([ -])[0-9]{6}\2[0-9]{5})(?![\w-]|[.,][0-9])"
)
# Prefixes and lengths of the large issuers: Visa; Mastercard; American Express; Discover; JCB;
# Diners Club. A tenth of all numbers passes Luhn's test, and few of those begin like this.
_ISSUED = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11}"
)


def find(views: Views) -> Iterator[Place]:
    """The places of card numbers."""
    if _SHAPE not in views.shape and not _SHAPE_IN_GROUPS.search(views.shape):
        return
    for found in _CARD.finditer(views.text):
        digits = found.group().replace(" ", "").replace("-", "")
        if _ISSUED.fullmatch(digits) and passes_luhn(digits):
            yield found.span()


def passes_luhn(digits: str) -> bool:
    """Whether the last of `digits` is their check digit (ISO/IEC 7812-1, annex B)."""
    doubled = (int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits)))
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
