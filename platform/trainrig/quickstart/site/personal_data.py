"""Invented personal data with a valid form, in sentences as people write them.

The data belong to nobody: e-mail addresses use the domains that RFC 2606 reserves, phone numbers
are 555-01xx numbers kept for fiction, cards begin like the test numbers of payment services, and
the banks of the accounts do not exist. Public IPv4 addresses are the exception, because no example
addresses count as routable; they are drawn at random.
"""

import ipaddress
import random
from collections.abc import Callable
from dataclasses import dataclass

from stdnum import iban as iban_format
from stdnum import luhn

# Share of all items that are disguised (`anna at example dot org`), and so harder to find.
HARD_SHARE = 0.1


@dataclass(frozen=True)
class PersonalItem:
    """One item of personal data; `sentence` contains `value` once, unchanged."""

    what: str  # "EMAIL", "IP", "PHONE", "CARD" or "IBAN", as in corpus.rewrite.pii.
    value: str
    sentence: str
    hard: bool


_WORDS = [
    "amber",
    "birch",
    "cedar",
    "cobalt",
    "coral",
    "delta",
    "ember",
    "fern",
    "garnet",
    "harbor",
    "heron",
    "indigo",
    "juniper",
    "lantern",
    "lichen",
    "maple",
    "meadow",
    "nectar",
    "opal",
    "orchid",
    "pebble",
    "quartz",
    "raven",
    "saffron",
    "tundra",
    "umber",
    "violet",
    "willow",
]
_DOMAINS = ("example.com", "example.org", "example.net")
_DIGIT_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_AREA_CODES = (212, 303, 312, 404, 415, 503, 617, 702, 808, 919)


def make_personal_items(count: int, seed: int) -> list[PersonalItem]:
    """Return `count` distinct items, alternating between the kinds.

    The first items do not depend on `count`.
    """
    draw = random.Random(f"personal/{seed}")
    items: dict[str, PersonalItem] = {}
    while len(items) < count:
        what = _KINDS[len(items) % len(_KINDS)]
        # Only some kinds can be disguised, so those kinds are disguised more often.
        hard = what in _HARD and draw.random() < HARD_SHARE * len(_KINDS) / len(_HARD)
        value = (_HARD if hard else _EASY)[what](draw)
        sentence = draw.choice(_SENTENCES[what]).format(value)
        items.setdefault(value, PersonalItem(what, value, sentence, hard))
    return list(items.values())


def _make_email(draw: random.Random) -> str:
    name = draw.choice("._-").join(draw.sample(_WORDS, 2))
    return f"{name}{draw.randrange(10, 1000)}@{draw.choice(_DOMAINS)}"


def _make_spelt_email(draw: random.Random) -> str:
    first, second = draw.sample(_WORDS, 2)
    domain = draw.choice(_DOMAINS).replace(".", " dot ")
    return f"{first} dot {second}{draw.randrange(10, 1000)} at {domain}"


def _make_ipv4(draw: random.Random) -> str:
    while True:
        # Addresses from 224 on are multicast or reserved, and belong to no host.
        address = ipaddress.IPv4Address(draw.randrange(1 << 24, 224 << 24))
        if address.is_global:
            return str(address)


def _make_phone(draw: random.Random) -> str:
    area = draw.choice(_AREA_CODES)
    line = draw.randrange(100)
    form = draw.choice(
        ("+1 {}-555-01{:02}", "({}) 555-01{:02}", "{}-555-01{:02}", "+1.{}.555.01{:02}")
    )
    return form.format(area, line)


def _make_spelt_phone(draw: random.Random) -> str:
    digits = f"{draw.choice(_AREA_CODES)}55501{draw.randrange(100):02}"
    return " ".join(_DIGIT_WORDS[int(digit)] for digit in digits)


def _make_card(draw: random.Random) -> str:
    prefix, length = draw.choice((("424242", 16), ("411111", 16), ("555555", 16), ("378282", 15)))
    body = prefix + "".join(str(draw.randrange(10)) for _ in range(length - len(prefix) - 1))
    digits = body + luhn.calc_check_digit(body)
    if length == 15:
        groups = [digits[:4], digits[4:10], digits[10:]]
    else:
        groups = [digits[start : start + 4] for start in range(0, 16, 4)]
    return draw.choice((" ", "-", "")).join(groups)


def _make_iban(draw: random.Random) -> str:
    def digits(count: int) -> str:
        return "".join(str(draw.randrange(10)) for _ in range(count))

    # No bank has these accounts: German bank codes do not begin with 0 or 9, and TEST is unused.
    country, account = draw.choice(
        (("DE", "99" + digits(16)), ("GB", "TEST" + digits(14)), ("NL", "TEST" + digits(10)))
    )
    iban = country + iban_format.calc_check_digits(f"{country}00{account}") + account
    spaced = " ".join(iban[start : start + 4] for start in range(0, len(iban), 4))
    return draw.choice((iban, spaced))


_EASY: dict[str, Callable[[random.Random], str]] = {
    "EMAIL": _make_email,
    "IP": _make_ipv4,
    "PHONE": _make_phone,
    "CARD": _make_card,
    "IBAN": _make_iban,
}
_HARD: dict[str, Callable[[random.Random], str]] = {
    "EMAIL": _make_spelt_email,
    "PHONE": _make_spelt_phone,
}
_KINDS = tuple(_EASY)

_SENTENCES = {
    "EMAIL": (
        "Questions about this part are best sent to {} before the end of the week.",
        "The maintainer of these pages can be reached at {} on working days.",
        "A corrected copy was promised to everyone who writes to {} in time.",
        "Please report anything that looks wrong here to {} and add a short example.",
    ),
    "IP": (
        "During the trial the service answered from {} and was moved afterwards.",
        "The log of that afternoon shows several hundred requests from {} alone.",
        "Access was later restricted to the machine at {} until the fault was found.",
        "An older client kept calling {} although the address had been given up.",
    ),
    "PHONE": (
        "If the build is blocked outside office hours, call {} and leave a message.",
        "The person on duty can be reached by phone at {} during the release.",
        "For access to the test machines please ring {} and ask for the operator.",
        "The number of the reading room is {} and somebody answers in the morning.",
    ),
    "CARD": (
        "The order in question had been paid with card number {} in the spring.",
        "By mistake the sample form was filled in with the card {} and saved.",
        "The refund went back to the credit card {} a few days after the complaint.",
        "Her receipt still showed the full card number {} at the bottom.",
    ),
    "IBAN": (
        "Donations for the project were collected on the account {} until summer.",
        "The travel costs were to be transferred to {} after the meeting.",
        "He had written the account number {} on the back of the invoice.",
        "Membership fees are paid once a year to the account {} of the club.",
    ),
}
