"""Finds secrets: tokens of published formats, private keys, and values assigned to secret names.

`pii_token_forms` has the formats of vendors. Values that look made up (too few different
characters, "EXAMPLE") are not masked.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii_token_forms import FORM_BEGINS, FORMS, LONGEST_BEFORE_TOKEN
from trainrig.corpus.rewrite.pii_views import FindPosition, Views

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
# "key" alone may belong to a table, a lock or a song.
_SECRET_NAME = (
    rb"(?:(?:api|access|secret|private|auth|encryption|signing|client|account|shared|master|app"
    rb"|application|consumer|service|session|webhook|storage|subscription|admin|deploy|license)"
    rb"[ _-]?key"
    rb"|secret|token|passw(?:or)?d|passphrase|pwd|credentials?|authorization)"
)
_ASSIGNMENT = (
    rb"(?:[ _-]?(?:id|base|value|string))?[\"'`]?"
    rb"(?:\s{0,3}(?::=|=>|[:=])\s{0,3}|\s(?=[\"'`])|>|\s(?:is|was):?\s{1,2})"
)
_BEFORE_SECRET = re.compile(
    rb"(?:" + _SECRET_NAME + _ASSIGNMENT + rb"(?:bearer |basic |token )?"
    rb"|(?:(?<=\s)--?[a-z-]{0,20}(?:key|token|secret|password)\s)"
    rb"|\bbearer |[?&;](?:sig|x-amz-signature|x-goog-signature)=)"
    rb"[\"'`]?(?:s\.)?\Z"  # Vault's older tokens begin with "s."
)
_LONGEST_BEFORE_SECRET = 64  # characters
_VALUE = re.compile(r"[A-Za-z0-9_/+-]{16,200}={0,2}(?:%3[Dd]){0,2}")
_AFTER_VALUE = re.compile(r"[A-Za-z0-9_/+.(\[-]")
_SENTENCE_ENDS = re.compile(r"\.(?=\s|\Z)")
_LEAST_ENTROPY = 3.0  # bits per character; 20 random hexadecimal digits have 3.5, words have less
_LEAST_DIGITS = 3  # names of variables have fewer
# Words joined by signs, with a number at the end: "out_of_the_bag_2020".
# "pwd" is also the working directory.
_FOLDER_NAME = re.compile(rb"pwd[\"'`]?\s{0,3}(?:=>|[:=])\s{0,3}[\"'`]?\Z")
_WORDS = re.compile(r"(?:[A-Za-z][a-z]*[_/-]){1,40}[A-Za-z]*[_-]?[0-9]{0,4}")
_DIGITS = re.compile("[0-9]+")
_MIXED_CASE = (0.3, 0.7)  # share of capitals among random letters; names of variables have fewer
_INSIDE_TOKENS = (b".", b":", b"~")
_WORD_STARTS = re.compile(rb"(?<![A-Za-z0-9_-])[A-Za-z0-9]")
_LETTERS_ALONE = (
    b"hf_",
    b"api_org_",
    b"AKIA",
    b"ASIA",
    b"gl",
    b"GOCSPX-",
)  # tokens that may have no digit
_PASSWORD_NAME = re.compile(rb"passw(?:or)?d|passphrase|pwd")
_PASSWORD = re.compile(
    r"[\"']?\s{0,3}(?:=>|[:=])\s{0,3}([\"'])(?=[^\"'\s]{0,63}[0-9])(?=[^\"'\s]{0,63}[A-Za-z])"
    r"(?=[^\"'\s]{0,63}[!#%^&*+=?@~.,;:|-])([^\"'\s<>(){}$\[\]/\\]{8,64})\1"  # no paths
)
_USER_AND_PASSWORD = re.compile(r"([^\s/@:\"'<>{}$]{6,64}):[^\s/@:\"'<>{}$]{1,64}//:[a-z+]{2,20}")
_LONGEST_CREDENTIALS = 160  # characters of a scheme, a user and a password


def find_formed(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of tokens of published formats."""
    raw = views.raw
    end = 0
    for start, stop in views.tokens:
        if not _contains_digit(views, start, stop) and not raw.startswith(_LETTERS_ALONE, start):
            continue
        # A token may begin before a dot or a colon, which end a run ("SG.…", "hvs.…", "123:AA…"),
        # and after a slash, which does not.
        at = start
        if raw[start - 1 : start] in _INSIDE_TOKENS:
            at = max(0, start - LONGEST_BEFORE_TOKEN)
        for word in _WORD_STARTS.finditer(raw, at, stop):
            begin = FORM_BEGINS.match(raw, word.start()) if word.start() >= end else None
            found = begin and FORMS[begin.lastgroup or ""].match(views.text, word.start())
            if found and _is_random(found.group()) and "EXAMPLE" not in found.group():
                end = found.end()
                yield found.span()


def find_web_tokens(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of JSON Web Tokens (RFC 7519) whose header names an algorithm."""
    if views.tokens and "eyJ" in views.text:
        for found in _JWT.finditer(views.text):
            if _names_an_algorithm(found.group(1)):
                yield found.span()


def find_private_keys(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of private keys in PEM (RFC 7468), without an end line up to their base64."""
    text = views.text
    at = 0
    if not views.tokens or "PRIVATE KEY" not in text:
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
    for start, stop in views.tokens:
        if not _contains_digit(views, start, stop):
            continue
        before = views.lower[max(0, start - _LONGEST_BEFORE_SECRET) : start]
        if not _BEFORE_SECRET.search(before):
            continue
        if views.raw[start : start + 1] == b"/" and _FOLDER_NAME.search(before):
            continue
        found = _VALUE.match(text, start)
        if found and _looks_like_secret(found.group()):
            after = _AFTER_VALUE.match(text, found.end())
            if not after or _SENTENCE_ENDS.match(text, found.end()):
                yield found.span()


def find_passwords(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of quoted passwords with signs, and of passwords in URLs."""
    for name in _PASSWORD_NAME.finditer(views.lower):
        found = _PASSWORD.match(views.text, name.end())
        if found:
            yield found.span(2)
    text = views.text
    at = text.find("@")
    while at >= 0:
        first = max(0, at - _LONGEST_CREDENTIALS)
        if "://" in text[first:at]:
            url = _USER_AND_PASSWORD.match(text[first:at][::-1])
            if url and _DIGITS.search(url.group(1)) and not url.group(1).isdigit():
                yield at - url.end(1), at
        at = text.find("@", at + 1)


def _contains_digit(views: Views, start: int, stop: int) -> bool:
    return b"0" in views.shape[start:stop]


def _looks_like_secret(value: str) -> bool:
    if not _is_random(value) or _WORDS.fullmatch(value):
        return False
    digits = sum(map(str.isdigit, value))
    if digits >= _LEAST_DIGITS:
        return True
    letters = sum(map(str.isalpha, value))
    capitals = sum(map(str.isupper, value))
    least, most = _MIXED_CASE
    if digits and least * letters <= capitals <= most * letters:
        return True
    return 0 < capitals < letters and len(_DIGITS.findall(value)) > 1


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
