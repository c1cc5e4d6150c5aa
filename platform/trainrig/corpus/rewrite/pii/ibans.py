"""Bank accounts as IBANs: of a country that has them, as long as there, with right check digits."""

import functools
import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import Place, Views

# Characters of an IBAN by country (the registry of ISO 13616).
_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS",
        23: "AE GI IL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "PT",
        26: "IS TR",
        27: "FR GR IT MC MR SM",
        28: "AL AZ CY DO GT HU LB PL",
        29: "BR PS QA UA",
        30: "JO KW MU",
        31: "MT",
    }.items()
    for country in countries.split()
}
_START = re.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}(?= ?[A-Z0-9]{4})")


def find(views: Views) -> Iterator[Place]:
    """The places of IBANs, with or without spaces."""
    text, at = views.text, 0
    while (at := views.shape.find(b"AA00", at)) >= 0:
        start, at = at, at + 1
        length = _LENGTHS.get(text[start : start + 2])
        if length and _START.match(text, start):
            whole = _pattern(length).match(text, start)
            if whole and passes_mod_97(whole.group().replace(" ", "")):
                at = whole.end()
                yield whole.span()


@functools.cache
def _pattern(length: int) -> re.Pattern[str]:
    return re.compile(rf"(?:[A-Z0-9] ?){{{length - 1}}}[A-Z0-9](?!\w)")


def passes_mod_97(iban: str) -> bool:
    """Whether the check digits of `iban` (upper case, no spaces) are right (ISO 13616, mod 97)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97 == 1
