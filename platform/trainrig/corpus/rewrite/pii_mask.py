"""Masks data that identify a person or a machine: `ann@example.com` becomes `<EMAIL>`.

The masked spans are reported without their values. Patterns find candidates, and checks confirm
them: check digits, public addresses, randomness of keys. Names, streets and other data that require
understanding are not found. The kinds of data are in the other modules of this folder; `mask`
combines them.
"""

import functools
import hashlib
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import EXTENDABLE, Settings
from trainrig.corpus.limits import Limit
from trainrig.corpus.rewrite import (
    pii_account_numbers,
    pii_addresses,
    pii_emails,
    pii_national_ids,
    pii_phones,
    pii_secrets,
)
from trainrig.corpus.rewrite.pii_emails import DOT_WORD
from trainrig.corpus.rewrite.pii_views import FindPosition, Kind, Views


class PII(Settings):
    """Kinds of personal data to mask, and the number of finds at which a document is dropped."""

    kind: Literal["PII"] = "PII"
    # Kinds of personal data to mask.
    kinds: tuple[Kind, ...] = (
        "KEY",
        "EMAIL",
        "IBAN",
        "CARD",
        "SSN",
        "NATIONAL_ID",
        "IP",
        "PHONE",
    )
    # Whether masks are numbered, so that equal values of a document have equal masks: <EMAIL_1>.
    pseudonyms: bool = False
    # Most finds in a document; with more it is dropped. None: no limit.
    max_per_document: Annotated[int | None, EXTENDABLE] = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit on the number of finds in a document."""
        if self.max_per_document is not None:
            yield Limit("too_many", "pii_finds", most=self.max_per_document)


_Finder = Callable[[Views], Iterator[FindPosition]]


@dataclass(frozen=True)
class MaskedSpan:
    """One masked find: its span in the original text, without its value."""

    kind: Kind
    start: int  # characters before the find
    length: int  # number of characters
    digest: str  # 16 hex digits: keyed BLAKE2b-64 of the value


class Pseudonyms:
    """Numbers of the values of a document, by kind, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Kind, dict[str, int]] = {}

    def name(self, kind: Kind, value: str) -> str:
        """Return the mask of `value`, such as <EMAIL_1>; other spellings have the same mask."""
        numbers = self._numbers.setdefault(kind, {})
        return f"<{kind}_{numbers.setdefault(_normalise(kind, value), len(numbers) + 1)}>"


_AT_SIGNS = re.compile(
    r"\s*(?:[\[({<*_-]\s?(?:at|ät|arroba|a|@)\s?[\])}>*_-]|\sat\s|%40|＠|@)\s*", re.IGNORECASE
)
_DOT_SIGNS = re.compile(
    rf"\s*(?:[\[({{<*_-]\s?(?:{DOT_WORD}|\.)\s?[\])}}>*_-]|\s{DOT_WORD}\s|\.)\s*", re.IGNORECASE
)


def _normalise(kind: Kind, value: str) -> str:
    """Return one spelling of `value`: addresses with "@" and dots, numbers without separators."""
    if kind == "KEY":
        return value
    if kind == "EMAIL":
        return _DOT_SIGNS.sub(".", _AT_SIGNS.sub("@", html.unescape(value))).lower()
    if kind == "IP":
        return value.lower()
    return "".join(filter(str.isalnum, value)).lower()


def mask(
    text: str, settings: PII, key: bytes = b"", pseudonyms: Pseudonyms | None = None
) -> tuple[str, tuple[MaskedSpan, ...]]:
    """Replace each find by its kind in angle brackets; return the text and the finds in order.

    Idempotent: a masked text has nothing left to mask.

    Args:
        text: any text.
        settings: the kinds to mask.
        key: secret key of the digests, at most 64 bytes. Without a key, equal values can still be
        matched, but short values can also be guessed: there are only 2^32 IPv4 addresses.
        pseudonyms: numbers of the values in other texts of the same document, if the settings
        number masks. None: the text is the whole document.
    """
    spans: list[MaskedSpan] = []
    # One find can hide another ("1.2.3.4@x.org"), so the search repeats until it finds nothing. A
    # found span is replaced by "<", spaces and ">", which no pattern matches, as in its mask.
    views = Views(text)
    again = True
    while again:
        places: list[FindPosition] = []
        for kind, find in _list_finders(settings.kinds):
            if found := sorted(find(views)):
                found = _keep_disjoint(found)
                spans += [_build_span(kind, text, start, end, key) for start, end in found]
                places += found
                views = views.blot(found)
        again = bool(places) and _may_find_more(views, sorted(places), settings)
    if not spans:
        return text, ()
    spans.sort(key=lambda span: span.start)
    names = pseudonyms or Pseudonyms()
    pieces = []
    at = 0
    for span in spans:
        end = span.start + span.length
        name = f"<{span.kind}>"
        if settings.pseudonyms:
            name = names.name(span.kind, text[span.start : end])
        pieces += [text[at : span.start], name]
        at = end
    return "".join([*pieces, text[at:]]), tuple(spans)


@functools.cache
def _list_finders(kinds: tuple[Kind, ...]) -> list[tuple[Kind, _Finder]]:
    return [(kind, find) for kind, finders in _FINDERS.items() if kind in kinds for find in finders]


def _keep_disjoint(found: list[FindPosition]) -> list[FindPosition]:
    """Return the sorted spans of `found` without those that overlap an earlier one."""
    disjoint: list[FindPosition] = []
    for start, end in found:
        if not disjoint or start >= disjoint[-1][1]:
            disjoint.append((start, end))
    return disjoint


def _may_find_more(views: Views, places: list[FindPosition], settings: PII) -> bool:
    """Return whether the text around `places`, which were just masked, may have more to mask.

    Elsewhere nothing has changed. If the text around them is not much shorter than the text, it is
    not looked at.
    """
    text = views.text
    around: list[FindPosition] = []
    for start, end in places:
        first = max(0, start - _REACH)
        if around and first <= around[-1][1]:
            first = around.pop()[0]
        around.append((first, end + _REACH))
    if 2 * sum(end - start for start, end in around) > len(text):
        return True
    finders = _list_finders(settings.kinds)
    parts = [Views(text[start:end]) for start, end in around]
    return any(next(iter(find(part)), None) for part in parts for _, find in finders)


def _build_span(kind: Kind, text: str, start: int, end: int, key: bytes) -> MaskedSpan:
    value = text[start:end].encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(value, digest_size=8, key=key).hexdigest()
    return MaskedSpan(kind, start, end - start, digest)


# Characters around a find, which may change what other patterns match: the longest context that a
# pattern reads has 160, and the longest token 2,000.
_REACH = 2_048
# In order of precedence: a span that fits two kinds is masked as the first.
_FINDERS: dict[Kind, tuple[_Finder, ...]] = {
    "KEY": (
        pii_secrets.find_private_keys,
        pii_secrets.find_formed,
        pii_secrets.find_web_tokens,
        pii_secrets.find_assigned,
        pii_secrets.find_passwords,
    ),
    "EMAIL": (
        pii_emails.find_emails,
        pii_emails.find_spaced_emails,
        pii_emails.find_emails_in_signs,
        pii_emails.find_referred_emails,
        pii_emails.find_spelt_emails,
    ),
    "IBAN": (pii_account_numbers.find_ibans,),
    "CARD": (pii_account_numbers.find_cards,),
    "SSN": (pii_account_numbers.find_ssns,),
    "NATIONAL_ID": (
        pii_national_ids.find_national_ids,
        pii_national_ids.find_national_ids_with_letters,
    ),
    "IP": (pii_addresses.find_ipv4, pii_addresses.find_ipv6),
    "PHONE": (
        pii_phones.find_international,
        pii_phones.find_american,
        pii_phones.find_labelled,
        pii_phones.find_in_brackets,
        pii_phones.find_spelt,
    ),
}
