"""Masks data that identify a person or a machine: `ann@example.com` becomes `<EMAIL>`.

The masked spans are reported without their values. Patterns find candidates, and checks confirm
them: check digits, public addresses, randomness of keys. Names, streets and other data that require
understanding are not found. The kinds of data are in the other modules of this folder; `mask`
combines them.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import EXTENDABLE, Settings
from trainrig.corpus.limits import Limit
from trainrig.corpus.rewrite import pii_account_numbers, pii_addresses, pii_emails, pii_phones, pii_secrets
from trainrig.corpus.rewrite.pii_views import FindPosition, Views

Kind = Literal["KEY", "EMAIL", "IBAN", "CARD", "SSN", "IP", "PHONE"]


class PII(Settings):
    """Kinds of personal data to mask, and the number of finds at which a document is dropped."""

    kind: Literal["PII"] = "PII"
    # Kinds of personal data to mask.
    kinds: tuple[Kind, ...] = ("KEY", "EMAIL", "IBAN", "CARD", "SSN", "IP", "PHONE")
    # Most finds in a document; with more it is dropped. None: no limit.
    max_per_document: Annotated[int | None, EXTENDABLE] = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit on the number of finds in a document."""
        if self.max_per_document is not None:
            yield Limit("too_many", "pii_finds", most=self.max_per_document)


@dataclass(frozen=True)
class MaskedSpan:
    """One masked find: its span in the original text, without its value."""

    kind: Kind
    start: int  # characters before the find
    length: int  # number of characters
    digest: str  # 16 hex digits: keyed BLAKE2b-64 of the value


def mask(text: str, settings: PII, key: bytes = b"") -> tuple[str, tuple[MaskedSpan, ...]]:
    """Replace each find by its kind in angle brackets; return the text and the finds in order.

    Idempotent: a masked text has nothing left to mask.

    Args:
        text: any text.
        settings: the kinds to mask.
        key: secret key of the digests, at most 64 bytes. Without a key, equal values can still be
        matched, but short values can also be guessed: there are only 2^32 IPv4 addresses.
    """
    spans: list[MaskedSpan] = []
    # One find can hide another ("1.2.3.4@x.org"), so the search repeats until it finds nothing. A
    # found span is replaced by "<", spaces and ">", which no pattern matches, as in its mask.
    views = Views(text)
    seen = -1
    while len(spans) > seen:
        seen = len(spans)
        for kind, finders in _FINDERS.items():
            for find in finders if kind in settings.kinds else ():
                if found := sorted(find(views)):
                    spans += [_build_span(kind, text, start, end, key) for start, end in found]
                    views = Views(_blot_spans(views.text, found))
    if not spans:
        return text, ()
    spans.sort(key=lambda span: span.start)
    pieces = []
    at = 0
    for span in spans:
        pieces += [text[at : span.start], f"<{span.kind}>"]
        at = span.start + span.length
    return "".join([*pieces, text[at:]]), tuple(spans)


def _build_span(kind: Kind, text: str, start: int, end: int, key: bytes) -> MaskedSpan:
    value = text[start:end].encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(value, digest_size=8, key=key).hexdigest()
    return MaskedSpan(kind, start, end - start, digest)


def _blot_spans(text: str, found: list[tuple[int, int]]) -> str:
    pieces = []
    at = 0
    for start, end in found:
        pieces += [text[at:start], "<", " " * (end - start - 2), ">"]
        at = end
    return "".join([*pieces, text[at:]])


# In order of precedence: a span that fits two kinds is masked as the first.
_FINDERS: dict[Kind, tuple[Callable[[Views], Iterator[FindPosition]], ...]] = {
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
    "IP": (pii_addresses.find_ipv4, pii_addresses.find_ipv6),
    "PHONE": (
        pii_phones.find_international,
        pii_phones.find_american,
        pii_phones.find_labelled,
        pii_phones.find_in_brackets,
        pii_phones.find_spelt,
    ),
}
