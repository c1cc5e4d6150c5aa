"""Masks what identifies a person or a machine: `ann@example.com` becomes `<EMAIL>`.

Patterns find, checks confirm: check sums of payment cards (Luhn) and IBANs (mod 97), publicness of
addresses. Names, streets and anything else that needs to be understood are not found.
"""

import functools
import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import AHEAD, Settings
from trainrig.corpus.filters.limits import Limit

Kind = Literal["EMAIL", "IP", "PHONE", "CARD", "IBAN"]


class PII(Settings):
    """Which kinds to mask, and when a document holds so many that it should go."""

    kind: Literal["PII"] = "PII"
    kinds: tuple[Kind, ...] = ("EMAIL", "IBAN", "CARD", "IP", "PHONE")
    max_per_document: Annotated[int | None, AHEAD] = Field(
        default=None, ge=0
    )  # finds; None: any number is masked

    def limits(self) -> Iterator[Limit]:
        """How many finds a document may have."""
        if self.max_per_document is not None:
            yield Limit("too_many", "pii_finds", most=self.max_per_document)

    def broken_rules(self, spans: tuple["Span", ...]) -> Iterator[str]:
        """Each rule that a document with these finds breaks."""
        if self.max_per_document is not None and len(spans) > self.max_per_document:
            yield "too_many"


@dataclass(frozen=True)
class Span:
    """One find, by its place in the text as it was, without its value."""

    kind: Kind
    start: int  # character
    length: int  # characters
    digest: str  # 16 hex digits: BLAKE2b-64 of the value, keyed


def mask(text: str, settings: PII, key: bytes = b"") -> tuple[str, tuple[Span, ...]]:
    """`text` with each find replaced by its kind in angle brackets, and the finds in their order.

    Idempotent: a masked text has nothing left to mask.

    Args:
        text: any text.
        settings: which kinds to mask.
        key: at most 64 bytes, kept secret, for the digests. Without one, equal values can still
            be recognised, but so can short values be guessed: there are only 2^32 addresses.
    """
    spans: list[Span] = []
    # What hides a find can itself be one ("1.2.3.4@x.org"), so we look until nothing is left. A
    # blotted find looks to its neighbours as its mask will: "<" and ">" are part of no pattern.
    blotted, seen = text, -1
    while len(spans) > seen:
        seen = len(spans)
        for kind, finder in _FINDERS.items():
            if kind in settings.kinds:
                found = list(finder(blotted))
                spans += [_span(kind, text, start, end, key) for start, end in found]
                blotted = _blot(blotted, found)
    spans.sort(key=lambda span: span.start)
    pieces, at = [], 0
    for span in spans:
        pieces += [text[at : span.start], f"<{span.kind}>"]
        at = span.start + span.length
    return "".join([*pieces, text[at:]]), tuple(spans)


def _span(kind: Kind, text: str, start: int, end: int, key: bytes) -> Span:
    value = text[start:end].encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(value, digest_size=8, key=key).hexdigest()
    return Span(kind, start, end - start, digest)


def _blot(text: str, found: list[tuple[int, int]]) -> str:
    pieces, at = [], 0
    for start, end in found:
        pieces += [text[at:start], "<", " " * (end - start - 2), ">"]
        at = end
    return "".join([*pieces, text[at:]])


_EMAIL = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[^\W_](?:[\w-]{0,62})\.){1,8}([^\W\d_]{2,24})(?![\w@-])"
)
_FILE_ENDINGS = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js"})  # "a@2x.png"


def _emails(text: str) -> Iterator[tuple[int, int]]:
    if "@" not in text:
        return
    for found in _EMAIL.finditer(text):
        if found.group(1).lower() not in _FILE_ENDINGS:
            yield found.span()


_IPV4 = re.compile(r"(?<![\w.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])")
_BEFORE_A_VERSION = re.compile(
    r"(?:\bv|\bver|\bversions?|\brelease[sd]?|\bbuild|\brev|\brevision|\bsection|§)[.:]?\s*$",
    re.IGNORECASE,
)


def _public_addresses(text: str) -> Iterator[tuple[int, int]]:
    for found in _IPV4.finditer(text):
        try:
            public = ipaddress.IPv4Address(found.group()).is_global
        except ValueError:
            continue
        # "version 2.0.0.1" is an address by form alone.
        before = text[max(0, found.start() - 12) : found.start()]
        if public and not _BEFORE_A_VERSION.search(before):
            yield found.span()


# International: a plus and 8 to 15 digits (ITU-T E.164). North American, as it is written there:
# area and exchange codes do not begin with 0 or 1 (NANP). Not with spaces alone between the three
# groups: so are the rows of a table written.
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:"
    r"\+[1-9](?:[ .-]?(?:\([0-9]{1,4}\)|[0-9])){7,18}"
    r"|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[ .-][0-9]{4}"
    r")(?![\w/-]|[.,][0-9])"
)


def _phones(text: str) -> Iterator[tuple[int, int]]:
    for found in _PHONE.finditer(text):
        if 8 <= sum(map(str.isdigit, found.group())) <= 15:
            yield found.span()


_CARD = re.compile(
    r"(?<![\w.+-])(?:[2-6][0-9]{12,18}|[2-6][0-9]{3}(?:[ -][0-9]{4}){3}|3[47][0-9]{2}[ -][0-9]{6}"
    r"[ -][0-9]{5})(?![\w-]|[.,][0-9])"
)
# Prefixes and lengths of the large issuers: Visa; Mastercard; American Express; Discover; JCB;
# Diners Club. A tenth of all numbers passes Luhn's test, and few of those begin like this.
_ISSUED = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11}"
)


def _cards(text: str) -> Iterator[tuple[int, int]]:
    for found in _CARD.finditer(text):
        digits = found.group().replace(" ", "").replace("-", "")
        if _ISSUED.fullmatch(digits) and passes_luhn(digits):
            yield found.span()


def passes_luhn(digits: str) -> bool:
    """Whether the last of `digits` is their check digit (ISO/IEC 7812-1, annex B)."""
    doubled = (int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits)))
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


# Characters of an IBAN by country (the registry of ISO 13616).
_IBAN_LENGTHS = {
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
_IBAN_START = re.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}(?= ?[A-Z0-9]{4})")


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while start := _IBAN_START.search(text, at):
        at = start.end()
        length = _IBAN_LENGTHS.get(start.group()[:2])
        if length is None:
            continue
        whole = _iban_pattern(length).match(text, start.start())
        if whole and passes_mod_97(whole.group().replace(" ", "")):
            at = whole.end()
            yield whole.span()


@functools.cache
def _iban_pattern(length: int) -> re.Pattern[str]:
    return re.compile(rf"(?:[A-Z0-9] ?){{{length - 1}}}[A-Z0-9](?!\w)")


def passes_mod_97(iban: str) -> bool:
    """Whether the check digits of `iban` (upper case, no spaces) are right (ISO 13616, mod 97)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97 == 1


_FINDERS: dict[Kind, Callable[[str], Iterator[tuple[int, int]]]] = {
    "EMAIL": _emails,
    "IBAN": _ibans,
    "CARD": _cards,
    "IP": _public_addresses,
    "PHONE": _phones,
}
