"""Finds IBANs (bank accounts), by the country's length and the check digits."""

import functools
import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import FindPosition, Views

# Length of an IBAN by country (the registry of ISO 13616, release 100, 2025).
LENGTHS = {
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
_START = re.compile(r"(?<!\w)(?:[A-Z]{2}|[a-z]{2})[0-9]{2}(?= ?[A-Za-z0-9]{4})")


def find(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of IBANs, with or without spaces, in capitals or small letters."""
    text = views.text
    at = 0
    while (at := views.shape.find(b"aa00", at)) >= 0:
        start = at
        at = at + 1
        length = LENGTHS.get(text[start : start + 2].upper())
        if length and _START.match(text, start):
            whole = _compile_pattern(length, text[start].isupper()).match(text, start)
            if whole and _is_iban(whole.group().replace(" ", "")):
                at = whole.end()
                yield whole.span()


@functools.cache
def _compile_pattern(length: int, capitals: bool) -> re.Pattern[str]:
    sign = "[A-Z0-9]" if capitals else "[a-z0-9]"
    return re.compile(rf"(?:{sign} ?){{{length - 1}}}{sign}(?!\w)")


def _is_iban(iban: str) -> bool:
    # A match in small letters may be a sequence of words and numbers.
    digits = sum(map(str.isdigit, iban))
    return (iban.isupper() or 2 * digits >= len(iban)) and passes_mod_97(iban.upper())


def passes_mod_97(iban: str) -> bool:
    """Return whether the check digits of `iban` (upper case, no spaces) are right (ISO 13616)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97 == 1
