"""Finds secrets: tokens of known formats, private keys, and values assigned to secret names.

The formats are those of AWS, GitHub, GitLab, Slack, Google, Stripe, OpenAI, Anthropic, npm, PyPI,
SendGrid, Hugging Face, DigitalOcean, Docker and Shopify, and of webhooks of Slack and Discord.
Values that look made up (too few different characters, "EXAMPLE") are not masked.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii_views import FindPosition, Views

# Fixed prefix and whole pattern of each format.
_FORMS = tuple(
    (begin.encode(), re.compile(rf"(?<![A-Za-z0-9_-]){begin}{rest}(?![A-Za-z0-9_-])"))
    for begin, rest in (
        ("AKIA", "[A-Z2-7]{16}"),
        ("ASIA", "[A-Z2-7]{16}"),
        *((f"gh{letter}_", "[A-Za-z0-9]{36,255}") for letter in "pousr"),
        ("github_pat_", "[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
        ("glpat-", "[A-Za-z0-9_-]{20,255}"),
        ("xox", "[abeoprs]-[0-9]{8,14}-[A-Za-z0-9-]{10,250}"),
        ("AIza", "[A-Za-z0-9_-]{35}"),
        ("sk_live_", "[A-Za-z0-9]{24,99}"),
        ("rk_live_", "[A-Za-z0-9]{24,99}"),
        ("sk-", "(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{32,250}"),
        ("npm_", "[A-Za-z0-9]{36}"),
        ("pypi-", "AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,255}"),
        ("SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
        ("hf_", "[A-Za-z]{34}"),
        *((f"do{letter}_v1_", "[a-f0-9]{64}") for letter in "por"),
        ("dckr_pat_", "[A-Za-z0-9_-]{27}"),
        ("shpat_", "[a-fA-F0-9]{32}"),
        ("hooks.slack.com/services/", "T[A-Z0-9]{7,12}/B[A-Z0-9]{7,12}/[A-Za-z0-9]{18,40}"),
        (
            "hooks.slack.com/workflows/",
            "T[A-Z0-9]{7,12}/A[A-Z0-9]{7,12}/[0-9]{10,24}/[A-Za-z0-9]{18,40}",
        ),
        ("discord.com/api/webhooks/", "[0-9]{16,20}/[A-Za-z0-9_-]{60,80}"),
        ("discordapp.com/api/webhooks/", "[0-9]{16,20}/[A-Za-z0-9_-]{60,80}"),
    )
)
# Every format matches one of these; each begins with a fixed character, which is searched fast. The
# lookbehind comes last, as most words are short.
_BEFORE_LINE = "|".join(rf"(?<={begin.decode()})" for begin, _ in _FORMS if begin.endswith(b"_"))
_ALL_HAVE = tuple(
    re.compile(sign)
    for sign in (
        rb"_(?=[A-Za-z0-9]{22})(?:" + _BEFORE_LINE.encode() + rb")",
        rb"-(?=[A-Za-z0-9_-]{19})(?:(?<=glpat-)|(?<=xox[abeoprs]-)|(?<=sk-)|(?<=pypi-))",
        rb"A(?:KIA|SIA|Iza)",
        rb"SG\.",
        rb"hooks\.slack\.com/",
        rb"/api/webhooks/",
    )
)
_JWT = re.compile(
    r"(?<![A-Za-z0-9_.-])(eyJ[A-Za-z0-9_-]{8,})\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    r"(?![A-Za-z0-9_-])"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_END_OF_KEY = re.compile(r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_LONGEST_KEY = 20_000  # characters; 16,384-bit RSA takes 13,000
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40}")
# The last line may be shorter, if nothing else is on it.
_LINES_OF_BASE64 = re.compile(
    r"(?:\s{0,3}[A-Za-z0-9+/=]{40,80}(?![A-Za-z0-9+/=]))+(?:\n[A-Za-z0-9+/=]{1,39}(?=\n|\Z))?"
)
_NAMES = (b"key", b"secret", b"token", b"password", b"passwd", b"credentials")
# "key" alone may belong to a table, a lock or a song.
_BEFORE_KEY = re.compile(
    rb"(?:api|access|secret|private|auth|encryption|signing|client|account|shared|master)[ _-]?\Z"
)
_LONGEST_BEFORE_KEY = 11  # characters
_ASSIGNED = re.compile(
    r"(?:[ _-]?id)?[\"']?(?:\s{0,3}(?::=|=>|[:=])\s{0,3}|\s(?=[\"']))(?:[Bb]earer )?"
    r"([\"']?)([A-Za-z0-9_/+-]{16,200}={0,2})\1(?![A-Za-z0-9_/+.(\[-])",
    re.IGNORECASE,
)
_LEAST_ENTROPY = 3.0  # bits per character; 20 random hexadecimal digits have 3.5, words have less
_LEAST_DIGITS = 3  # names of variables have fewer


def find_formed(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of tokens of known formats, format by format."""
    if not any(sign.search(views.raw) for sign in _ALL_HAVE):
        return
    text = views.text
    for begin, form in _FORMS:
        at = views.raw.find(begin)
        while at >= 0:
            found = form.match(text, at)
            if found and _is_random(found.group()[len(begin) :]) and "EXAMPLE" not in found.group():
                yield found.span()
            at = views.raw.find(begin, found.end() if found else at + 1)


def find_web_tokens(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of JSON Web Tokens (RFC 7519) whose header names an algorithm."""
    if "eyJ" in views.text:
        for found in _JWT.finditer(views.text):
            if _names_an_algorithm(found.group(1)):
                yield found.span()


def find_private_keys(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of private keys in PEM (RFC 7468), without an end line up to their base64."""
    text = views.text
    at = 0
    if "PRIVATE KEY" not in text:
        return
    end = _END_OF_KEY.search(text)
    while begin := _PRIVATE_KEY.search(text, at):
        at = begin.end()
        while end and end.start() < at:
            end = _END_OF_KEY.search(text, end.end())
        whole = end and end.end() - at <= _LONGEST_KEY
        last = end if whole else _LINES_OF_BASE64.match(text, at)
        if last and _BASE64.search(text, at, last.end()):
            at = last.end()
            yield begin.start(), at


def find_assigned(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of random-looking values that are assigned to the name of a secret."""
    text = views.text
    lower = views.lower
    for name in _NAMES:
        at = lower.find(name)
        while at >= 0:
            end = at + len(name)
            if name != b"key" or _BEFORE_KEY.search(lower, max(0, at - _LONGEST_BEFORE_KEY), at):
                found = _ASSIGNED.match(text, end)
                if found and _looks_like_secret(found.group(2)):
                    yield found.span(2)
            at = lower.find(name, end)


def _looks_like_secret(value: str) -> bool:
    return sum(map(str.isdigit, value)) >= _LEAST_DIGITS and _is_random(value)


def _is_random(value: str) -> bool:
    counts = Counter(value).values()
    entropy = -sum(n * math.log2(n / len(value)) for n in counts) / max(1, len(value))
    return entropy >= _LEAST_ENTROPY


def _names_an_algorithm(header: str) -> bool:
    try:
        stated = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, binascii.Error):
        return False
    return isinstance(stated, dict) and "alg" in stated
