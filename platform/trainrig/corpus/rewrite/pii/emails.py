"""Finds e-mail addresses, including those spelt out such as "ann [at] example.org".

`Views.lower` and `Views.raw` are bytes with one entry per character, so their positions are those
of the text.
"""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import FindPosition, Views

_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62})\.){1,8}([^\W\d_]{2,24})(?![\w@-])")
_LOCAL_LENGTH = 64  # characters (RFC 5321, section 4.5.3.1)
# Matches the reversed text before the "@". Text that goes on after 64 characters is no local part.
_LOCAL = re.compile(rf"[\w.%+-]{{1,{_LOCAL_LENGTH}}}(?![\w.%+-])")
_FILE_ENDINGS = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js"})  # "a@2x.png"
# One pattern per bracket: a pattern that begins with a fixed character is searched much faster.
_AT_IN_WORDS = tuple(
    re.compile(at) for at in (rb"\((?:at|@|\xe4t)\)", rb"\[(?:at|@)\]", rb"\{(?:at|@)\}")
)
_IN_WORDS = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64} ?(?:\((?i:at|@|ät)\)|\[(?i:at|@)\]|\{(?i:at|@)\}) ?"
    r"(?:[^\W_](?:[\w-]{0,62})(?:\.| ?[\[({](?i:dot|punkt|\.)[\])}] ?)){1,8}[^\W\d_]{2,24}"
    r"(?![\w@-])"
)
_SPELT_AT = b" at "
# Matches the reversed text before " at ", where " dot " reads " tod ".
_SPELT_LOCAL = re.compile(r"(?:[\w+-]{1,30} tod ){0,3}[\w+-]{1,30}(?!\w)")
_SPELT_DOMAIN = re.compile(
    r"[^\W_][\w-]{0,62}(?: dot [^\W_][\w-]{0,62}){0,3} dot"
    r" (?:com|org|net|edu|gov|info|io|me|eu|de|uk|fr|es|it|nl|ch|at|pl|ca|au|in|us)(?![\w@-])"
)
# "Look at example dot com" is no address, but "write to ann at example dot com" contains one.
_INTRODUCTION = re.compile(
    rb"\b(?:e-?mails?|mail|contact|write|writes|reach(?:ed)?|address)\b[^.\n<>]{0,24}\Z"
)
_LONGEST_SPELT = 120  # characters of a spelt local part
_LONGEST_INTRODUCTION = 48  # characters


def find(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses, in order."""
    text = views.text
    end = 0
    at = text.find("@")
    while at >= 0:
        first = max(end, at - _LOCAL_LENGTH - 1)
        local = _LOCAL.match(text[first:at][::-1])
        if local and (domain := _DOMAIN.match(text, at + 1)):
            if domain.group(1).lower() not in _FILE_ENDINGS:
                yield at - local.end(), domain.end()
            end = domain.end()
        at = text.find("@", max(at + 1, end))


def find_in_words(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses whose "@" is written as a word in brackets."""
    if any(at.search(views.lower) for at in _AT_IN_WORDS):
        for found in _IN_WORDS.finditer(views.text):
            yield found.span()


def find_spelt(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses in spoken form: "ann dot lee7 at example dot org"."""
    text = views.text
    end = 0
    if b" dot " not in views.raw:
        return
    at = views.lower.find(_SPELT_AT)
    while at >= 0:
        after = at + len(_SPELT_AT)
        domain = _SPELT_DOMAIN.match(text, after)
        local = domain and _SPELT_LOCAL.match(text[max(end, at - _LONGEST_SPELT) : at][::-1])
        if domain and local:
            reversed_local = local.group()
            start = at - local.end()
            is_name = " tod " in reversed_local or any(map(str.isdigit, reversed_local))
            if is_name or _INTRODUCTION.search(
                views.lower, max(0, start - _LONGEST_INTRODUCTION), start
            ):
                end = domain.end()
                yield start, end
        at = views.lower.find(_SPELT_AT, max(end, at + 1))
