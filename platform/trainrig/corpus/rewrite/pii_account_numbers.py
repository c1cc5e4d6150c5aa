"""Finds payment card numbers, IBANs (bank accounts) and US social security numbers.

Cards are recognised by the issuers' prefixes and the check digit, IBANs by the country's length and
the check digits.

Of social security numbers, only those are found whose area, group and serial can be issued. No area
is 000, 666 or 9xx, no group 00, no serial 0000 (20 CFR 422.103; SSA, "Social Security Number
Randomization"). With dashes the format alone suffices; with spaces or without separators, a word
must announce the number.
"""

import functools
import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii_views import FindPosition, Views

_CARD_SHAPE = b"000000000000"
_CARD_SHAPE_IN_GROUPS = re.compile(rb"0000[ -]0000(?:00)?[ -]0000|000000[ -]0000000000")
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
    if _CARD_SHAPE not in views.shape and not _CARD_SHAPE_IN_GROUPS.search(views.shape):
        return
    for found in views.find_matches(_CARD, _CARD_BEGIN):
        digits = found.group().replace(" ", "").replace("-", "")
        if not passes_luhn(digits):
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


def passes_luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    doubled = (int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits)))
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


# Length of an IBAN by country (the registry of ISO 13616, release 100, 2025).
IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
_IBAN_START = re.compile(r"(?<!\w)(?:[A-Z]{2}|[a-z]{2})[0-9]{2}(?= ?[A-Za-z0-9]{4})")


def find_ibans(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of IBANs, with or without spaces, in capitals or small letters."""
    text = views.text
    at = 0
    while (at := views.shape.find(b"aa00", at)) >= 0:
        start = at
        at = at + 1
        length = IBAN_LENGTHS.get(text[start : start + 2].upper())
        if length and _IBAN_START.match(text, start):
            whole = _compile_iban_pattern(length, text[start].isupper()).match(text, start)
            if whole and _is_iban(whole.group().replace(" ", "")):
                at = whole.end()
                yield whole.span()


@functools.cache
def _compile_iban_pattern(length: int, capitals: bool) -> re.Pattern[str]:
    sign = "[A-Z0-9]" if capitals else "[a-z0-9]"
    return re.compile(rf"(?:{sign} ?){{{length - 1}}}{sign}(?!\w)")


def _is_iban(iban: str) -> bool:
    # A match in small letters may be a sequence of words and numbers.
    digits = sum(map(str.isdigit, iban))
    return (iban.isupper() or 2 * digits >= len(iban)) and passes_mod_97(iban.upper())


def passes_mod_97(iban: str) -> bool:
    """Return whether the check digits of `iban` (upper case, no spaces) are right (ISO 13616)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97 == 1


_SSN_SHAPE = re.compile(rb"000-00-0000|000 00 0000|000000000")
_SSN_BEGIN = re.compile(rb"0(?<![a0_.+/-]0)(?=00-00-0000|00 00 0000|00000000)")
_SSN = re.compile(
    r"(?<![\w.+/-])(?<!\+[0-9] )(?<!\+[0-9]{2} )(?<!\+[0-9]{3} )"
    r"(?!000|666|9)[0-9]{3}([ -]?)(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?![\w/-]|[.,][0-9])"
)
_SSN_WORDS = re.compile(
    rb"\b(?:ssns?|soc(?:ial)?\.? sec(?:urity)?\.?)(?: (?:numbers?|nos?\.?|nr\.?|cards?|#))?"
    rb"[^0-9.\n<>]{0,24}\Z"
)
_LONGEST_BEFORE_SSN = 60  # characters
# Printed in advertisements and therefore void.
_ADVERTISED_SSNS = frozenset({"078051120", "219099999"})


def find_ssns(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of social security numbers."""
    if not _SSN_SHAPE.search(views.shape):
        return
    for found in views.find_matches(_SSN, _SSN_BEGIN):
        start = found.start()
        if re.sub("[ -]", "", found.group()) in _ADVERTISED_SSNS:
            continue
        if found.group(1) == "-" or _SSN_WORDS.search(
            views.lower, max(0, start - _LONGEST_BEFORE_SSN), start
        ):
            yield found.span()
