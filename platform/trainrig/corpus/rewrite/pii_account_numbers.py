"""Finds payment card numbers, IBANs (bank accounts) and US social security numbers.

Cards are recognised by the issuers' prefixes and the check digit, IBANs by the country's format and
the check digits. python-stdnum knows the formats, the check digits and the numbers never issued.

A social security number with dashes is found by its format alone. With spaces or without
separators, a word must announce the number.
"""

import functools
import re
from collections.abc import Iterator

from stdnum import iban, luhn, numdb
from stdnum.us import ssn

from trainrig.corpus.rewrite.pii_views import FindPosition, Views

_CARD_BEGIN = re.compile(rb"0(?<![a0_.+-]0)(?=000(?:0{8}|(?:00)?[ -]0000))")
_CARD = re.compile(
    r"(?<![\w.+-])(?:[2-6][0-9]{11,18}|[2-6][0-9]{3}([ -])[0-9]{4}(?:\1[0-9]{4}){1,2}"
    r"(?:\1[0-9]{1,3})?|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5}|6[0-9]{5}([ -])[0-9]{10}(?:\3[0-9]{3})?"
    r"|6[0-9]{5}[ -][0-9]{13})(?![\w-]|[.,][0-9])"
)
# Prefixes and lengths of the large issuers: Visa; Mastercard; American Express; Discover; JCB;
# Diners Club; UnionPay; Mir. A tenth of all numbers passes Luhn's test, but few of those have such
# a prefix.
_ISSUED_CARD = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11}|62[0-9]{14,17}|220[0-4][0-9]{12,15}"
)
# Maestro numbers vary in length, and share prefixes with barcodes and many other numbers. So they
# count only in groups as on a card, with the length of a card number, or after a word for cards.
_MAESTRO = re.compile(r"(?:50|5[6-9]|6[0-9])[0-9]{10,17}")
_CARD_LENGTHS = (16, 19)  # digits
_CARD_WORDS = re.compile(
    rb"\b(?:maestro|(?:debit|credit|bank|ec|payment)[ -]?cards?|cards?|kart[ae]n?(?:nummer)?|carte"
    rb"|tarjeta|carta|pan)\b[^0-9.\n<>]{0,24}\Z"
)
_LONGEST_BEFORE_CARD = 48  # characters


def find_cards(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of card numbers."""
    for found in views.find_numbers(_CARD, _CARD_BEGIN):
        digits = found.group().replace(" ", "").replace("-", "")
        if not luhn.is_valid(digits):
            continue
        if _ISSUED_CARD.fullmatch(digits) or (
            _MAESTRO.fullmatch(digits) and _is_card_announced(views, found, len(digits))
        ):
            yield found.span()


def _is_card_announced(views: Views, found: re.Match[str], length: int) -> bool:
    if len(found.group()) > length or length in _CARD_LENGTHS:
        return True
    start = found.start()
    return _CARD_WORDS.search(views.lower, max(0, start - _LONGEST_BEFORE_CARD), start) is not None


_IBAN_DIGITS = re.compile(rb"00(?<=aa00)")  # begins with fixed characters, which are found fast
_IBAN_START = re.compile(r"(?<!\w)(?:[A-Z]{2}|[a-z]{2})[0-9]{2}(?= ?[A-Za-z0-9]{4})")


def find_ibans(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of IBANs, with or without spaces, in capitals or small letters."""
    text = views.text
    last = 0
    for check_digits in _IBAN_DIGITS.finditer(views.shape):
        start = check_digits.start() - 2
        if start < last or not _IBAN_START.match(text, start):
            continue
        pattern = _compile_iban_pattern(text[start : start + 2])
        whole = pattern.match(text, start) if pattern else None
        if whole and _is_iban(whole.group().replace(" ", "")):
            last = whole.end()
            yield whole.span()


@functools.cache
def _compile_iban_pattern(country: str) -> re.Pattern[str] | None:
    """Return the pattern of as many characters as the country's IBANs have; None if it has none."""
    _, facts = numdb.get("iban").info(country.upper())[0]
    length = 4 + sum(map(int, re.findall("[0-9]+", facts.get("bban", ""))))
    sign = "[A-Z0-9]" if country.isupper() else "[a-z0-9]"
    return re.compile(rf"(?:{sign} ?){{{length - 1}}}{sign}(?!\w)") if facts else None


def _is_iban(number: str) -> bool:
    # A match in small letters may be a sequence of words and numbers.
    digits = sum(map(str.isdigit, number))
    return (number.isupper() or 2 * digits >= len(number)) and iban.is_valid(number, False)


_SSN_BEGIN = re.compile(rb"0(?<![a0_.+/-]0)(?=00-00-0000|00 00 0000|00000000)")
_SSN = re.compile(
    r"(?<![\w.+/-])(?<!\+[0-9] )(?<!\+[0-9]{2} )(?<!\+[0-9]{3} )"
    r"[0-9]{3}([ -]?)[0-9]{2}\1[0-9]{4}(?![\w/-]|[.,][0-9])"
)
_SSN_WORDS = re.compile(
    rb"\b(?:ssns?|soc(?:ial)?\.? sec(?:urity)?\.?)(?: (?:numbers?|nos?\.?|nr\.?|cards?|#))?"
    rb"[^0-9.\n<>]{0,24}\Z"
)
_LONGEST_BEFORE_SSN = 60  # characters


def find_ssns(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of social security numbers."""
    for found in views.find_numbers(_SSN, _SSN_BEGIN):
        start = found.start()
        if not ssn.is_valid(re.sub("[ -]", "", found.group())):
            continue
        if found.group(1) == "-" or _SSN_WORDS.search(
            views.lower, max(0, start - _LONGEST_BEFORE_SSN), start
        ):
            yield found.span()
