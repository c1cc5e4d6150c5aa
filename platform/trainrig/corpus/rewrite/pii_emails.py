"""Finds e-mail addresses, plain and in disguise: "ann [at] example [dot] org".

Each kind of "@" is found by a cheap search. The local part before it is matched backwards, and the
domain after it forwards, both over a bounded number of characters, so that the time is linear.

A disguise that prose can contain ("look at example dot com") counts only with evidence: a word such
as "e-mail" before it, a local part that looks like a name ("ann.lee7"), capitals, or a line that
contains nothing else.
"""

import html
import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii_views import FindPosition, Views

_LOCAL_LENGTH = 64  # characters (RFC 5321, section 4.5.3.1)
_LONGEST_LOCAL = 120  # characters of a local part in disguise
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62})\.){1,8}([^\W\d_]{2,24})(?![\w@-])")
# Matches the reversed text before the "@". Text that goes on after 64 characters is no local part.
_LOCAL = re.compile(rf"[\w.%+-]{{1,{_LOCAL_LENGTH}}}(?![\w.%+-])")
_FILE_ENDINGS = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js"})  # "a@2x.png"

# Top-level domains that may follow a dot in words, where any word of a sentence could follow.
_KNOWN_ENDINGS = (
    "(?:com|org|net|edu|gov|mil|info|biz|io|me|tv|ai|app|dev|xyz|site|online|tech|eu|de|uk|fr|es|it|nl"
    "|ch|at|be|pl|ca|au|in|us|br|ru|jp|cn|kr|mx|se|no|dk|fi|cz|pt|gr|hu|ro|ie|nz|za|ar|cl|co|ua|tr|sk"
    "|si|hr|bg|lt|lv|ee|il|sg|hk|tw|th|vn|id|ph|my|pk|ng|ke|eg|ir)"
)
DOT_WORD = "(?:dot|d0t|punkt|punto|point|ponto|punt)"
_DOT_IN_SIGNS = rf"\.| ?[\[({{<] ?(?:{DOT_WORD}|\.) ?[\])}}>] ?"
_LABEL = r"[^\W_][\w-]{0,62}"
_DOMAIN_IN_SIGNS = re.compile(
    rf"(?:{_LABEL}(?:{_DOT_IN_SIGNS})){{1,8}}[^\W\d_]{{2,24}}(?![\w@-])", re.IGNORECASE
)
_DOMAIN_IN_WORDS = re.compile(
    rf"(?:{_LABEL}(?:{_DOT_IN_SIGNS}| {DOT_WORD} )){{1,8}}{_KNOWN_ENDINGS}(?![\w@-])",
    re.IGNORECASE,
)
# After a dot between spaces, most of the other known endings could begin a sentence.
_DOMAIN_APART = re.compile(
    rf"(?:{_LABEL} \. ){{1,8}}(?:com|org|net|edu|gov|info|io)(?![\w@-])", re.IGNORECASE
)
# Matches the reversed text before a disguised "@", where "dot" reads "tod".
_REVERSED_DOT = "(?:tod|t0d|tknup|otnup|tniop|otnop|tnup)"
_LOCAL_IN_SIGNS = re.compile(
    rf" ?[\w.%+-]{{1,{_LOCAL_LENGTH}}}+"
    rf"(?: ?[\])}}>] ?(?:{_REVERSED_DOT}|\.) ?[\[({{<] ?[\w.%+-]{{1,{_LOCAL_LENGTH}}}+){{0,3}}"
    r"(?![\w.%+-])",
    re.IGNORECASE,
)
_LOCAL_IN_WORDS = re.compile(
    rf"[\w.%+-]{{1,{_LOCAL_LENGTH}}}+(?: {_REVERSED_DOT} [\w%+-]{{1,30}}+){{0,3}}(?![\w.%+-])",
    re.IGNORECASE,
)
# In this view, each sign that may enclose an "at" is a bar.
_BARS = bytes(ord("|") if chr(code) in "[](){}<>*_-" else code for code in range(256))
_AT_IN_BARS = re.compile(rb"\| ?(at|@|\xe4t|arroba|a) ?\|")
_BRACKETS = "[({<"
# Reversed words of programs before a condition in brackets.
_IN_CODE = re.compile(r" ?(?:fi|elihw|nruter|esle|rof|hctiws|file|hctac|noitcnuf|dna|ro|ton|ni)")
_DASHED = {
    sign: (
        re.compile(
            rf" ?(?:[a-z0-9]{{1,63}} ?{sign}{DOT_WORD}{sign} ?){{1,4}}{_KNOWN_ENDINGS}(?![\w@-])",
            re.IGNORECASE,
        ),
        re.compile(
            rf" ?[a-z0-9.+]{{1,{_LOCAL_LENGTH}}}+"
            rf"(?: ?{sign}{_REVERSED_DOT}{sign} ?[a-z0-9.+]{{1,30}}+){{0,3}}(?![\w.%+-])",
            re.IGNORECASE,
        ),
    )
    for sign in ("-", "_", r"\*")
}
_AT_REFERENCE = re.compile(rb"&(?:#0{0,4}64|#x0{0,4}40|commat);")
_REFERENCE = r"&(?:#(?!0*46;)[0-9]{2,7}|#x(?!0*2e;)[0-9a-f]{2,6});"
_DOT_REFERENCE = r"\.|&(?:#0{0,4}46|#x0{0,4}2e|period);"
_REFERRED_DOMAIN = re.compile(
    rf"(?:(?:{_REFERENCE}|[\w-]){{1,63}}(?:{_DOT_REFERENCE})){{1,8}}"
    rf"(?:{_REFERENCE}|[^\W\d_]){{2,24}}(?![\w@-])",
    re.IGNORECASE,
)
_REFERRED_LOCAL = re.compile(
    rf"(?:;[0-9a-f]{{2,7}}x?#&|;doirep&|[\w.%+-]){{1,{_LOCAL_LENGTH}}}+(?![\w.%+-])", re.IGNORECASE
)
_AT_WORD = b" at "
# "Look at example dot com" is no address, but "write to ann at example dot com" contains one.
_INTRODUCTION = re.compile(
    rb"\b(?:e-?mails?|mail(?:to)?|contact|writes?|reach(?:ed)?|address|correo|courriel|kontakt)\b"
    rb"[^.\n<>]{0,24}\Z"
)
# Before a domain with a dot, which prose names much more often, the address must follow at once.
_LABELLED = re.compile(
    rb"\b(?:e-?mails?|mail(?:to)?|contact|writes?|reach(?:ed)?|address|correo|courriel|kontakt)"
    rb"(?: (?:me|us|him|her|them|address|is))?[:;=]\s{0,2}\Z"
)
_USED = re.compile(rb"(?:\b(?:use|using|via|through|at)|:) ?\Z")
# After these words a verb may follow: "contact us to register at example dot com".
_BEFORE_A_VERB = re.compile(
    rb"\b(?:to|and|or|by|is|are|was|were|be|been|please|can|will|now)\s{1,2}\Z"
)
_ADDRESSED = re.compile(
    rb"\b(?:writes?|e-?mails?|mail|send(?: it| them)?|sent|reach(?: out)?|contact|reply|replies"
    rb"|forward(?:ed)?|addressed) to\s{1,2}\Z"
)
_INFLECTED = re.compile(r"(?:ing|ed|ers|ly)$", re.IGNORECASE)  # "selling at", "based at"
_LONGEST_INTRODUCTION = 48  # characters
_LIKE_A_NAME = re.compile(r"[^\W\d_]{2,}[._+][^\W\d_]{2,}|[^\W\d_]{2,}[._]?[0-9]{1,4}\b")
_LIKE_A_FILE = re.compile(
    r"\.(?:js|ts|py|md|net|com|org|io|ai|co|html?|pdf|txt|json|exe|zip)$", re.IGNORECASE
)
_DOT_WORD_APART = re.compile(rf" {DOT_WORD} ", re.IGNORECASE)
_LONGEST_MARGIN = 12  # characters around an address that is alone on its line
# Words before "at" or " @ " that begin a sentence about a place, not an address.
_NO_NAME = re.compile(
    r"a|address|all|am|and|are|arrive|available|be|been|buy|call|click|dinner|find|found|from|go"
    r"|here|him|hosted|i|in|is|it|join|live|look|lunch|made|me|meet|met|more|now|of|on"
    r"|online|open|or|order|out|party|people|read|sale|see|shop|show|sign|site|start|stay"
    r"|store|talk|the|them|there|these|they|this|those|time|today|tomorrow|tonight|up|us"
    r"|visit|was|watch|we|website|were|work|working|works|you",
    re.IGNORECASE,
)


def find_emails(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses with an "@", in order; the dots of the domain may be words."""
    text = views.text
    end = 0
    at = text.find("@")
    while at >= 0:
        first = max(end, at - _LOCAL_LENGTH - 1)
        local = _LOCAL.match(text[first:at][::-1])
        if local:
            domain = _DOMAIN.match(text, at + 1)
            if domain:
                if domain.group(1).lower() not in _FILE_ENDINGS:
                    yield at - local.end(), domain.end()
                end = domain.end()
            elif disguised := _match_domain(text, at + 1):  # no dots apart: a sentence may end
                end = disguised
                yield at - local.end(), end
        at = text.find("@", max(at + 1, end))


def find_spaced_emails(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses with spaces around the "@": "ann.lee @ example.com"."""
    text = views.text
    end = 0
    at = views.raw.find(b" @") if b"@" in views.raw else -1
    while at >= 0:
        local = _LOCAL_IN_SIGNS.match(text[max(end, at - _LONGEST_LOCAL) : at][::-1])
        after = at + 3 if text[at + 2 : at + 3] == " " else at + 2
        apart = _DOMAIN_APART.match(text, after)
        domain = apart.end() if apart else _match_domain(text, after)
        if local and domain and _is_evident(views, at - local.end(), at, domain):
            end = domain
            yield at - local.end(), end
        at = views.raw.find(b" @", max(at + 1, end))


def find_emails_in_signs(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses whose "@" is a word between signs: "(at)", "[at]", "-at-"."""
    text = views.text
    bars = views.lower.translate(_BARS)
    end = 0
    for found in _AT_IN_BARS.finditer(bars):
        start, after = found.span()
        sign = text[start]
        if sign in _BRACKETS:
            local = _LOCAL_IN_SIGNS.match(text[max(end, start - _LONGEST_LOCAL) : start][::-1])
            after += text[after : after + 1] == " "
            domain = _match_domain(text, after) if local else None
            # "(a)" also numbers the parts of a list, and "(at)" may be a variable in code.
            if (
                local
                and domain
                and _ends_in_known(text, after, domain)
                and not _IN_CODE.fullmatch(local.group())
            ):
                end = domain
                yield start - local.end(), end
        elif sign in "-_*" and text[after - 1] == sign:
            forward, backward = _DASHED["\\*" if sign == "*" else sign]
            match = forward.match(text, after)
            local = match and backward.match(text[max(end, start - _LONGEST_LOCAL) : start][::-1])
            if match and local:
                end = match.end()
                yield start - local.end(), end


def find_referred_emails(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses with character references or "%40": "ann&#64;example.com"."""
    text = views.text
    raw = views.raw
    if b"&" in raw and (b"&#" in raw or b"&commat;" in raw):
        end = 0
        for found in _AT_REFERENCE.finditer(views.lower):
            start = found.start()
            local = _REFERRED_LOCAL.match(text[max(end, start - 8 * _LOCAL_LENGTH) : start][::-1])
            domain = _REFERRED_DOMAIN.match(text, found.end())
            if local and domain and _DOMAIN.fullmatch(html.unescape(domain.group())):
                end = domain.end()
                yield start - local.end(), end
    at = raw.find(b"%40") if b"%" in raw else -1
    while at >= 0:
        local = _LOCAL.match(text[max(0, at - _LOCAL_LENGTH - 1) : at][::-1])
        plain = _DOMAIN.match(text, at + 3)
        if local and plain and "%" not in local.group():
            yield at - local.end(), plain.end()
        at = raw.find(b"%40", at + 1 if not plain else plain.end())
    at = -1 if text.isascii() else text.find("＠")
    while at >= 0:
        local = _LOCAL.match(text[max(0, at - _LOCAL_LENGTH - 1) : at][::-1])
        plain = _DOMAIN.match(text, at + 1)
        if local and plain:
            yield at - local.end(), plain.end()
        at = text.find("＠", at + 1 if not plain else plain.end())


def find_spelt_emails(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of addresses in spoken form: "ann dot lee7 at example dot org"."""
    text = views.text
    end = 0
    at = views.lower.find(_AT_WORD)
    while at >= 0:
        after = at + len(_AT_WORD)
        domain = _DOMAIN_IN_WORDS.match(text, after)
        if domain:
            local = _LOCAL_IN_WORDS.match(text[max(end, at - _LONGEST_LOCAL) : at][::-1])
            if local and _is_evident(views, at - local.end(), at, domain.end()):
                end = domain.end()
                yield at - local.end(), end
        at = views.lower.find(_AT_WORD, max(end, at + 1))


def _match_domain(text: str, start: int) -> int | None:
    """Return the end of the domain at `start`, whose dots may be words; None if there is none."""
    ends = [
        found.end()
        for pattern in (_DOMAIN_IN_SIGNS, _DOMAIN_IN_WORDS)
        if (found := pattern.match(text, start))
    ]
    return max(ends, default=None)


_KNOWN_END = re.compile(rf"(?:.*[^\w])?{_KNOWN_ENDINGS}", re.IGNORECASE | re.DOTALL)


def _ends_in_known(text: str, start: int, end: int) -> bool:
    return _KNOWN_END.fullmatch(text, start, end) is not None


def _is_evident(views: Views, start: int, at: int, end: int) -> bool:
    """Return whether there is evidence that the words from `start` to `end` are an address.

    The local part is text[start:at].
    """
    text = views.text
    local = text[start:at].strip()
    domain = text[at:end]
    before = max(0, start - _LONGEST_INTRODUCTION)
    lower = views.lower
    introduced = _INTRODUCTION.search(lower, before, start) is not None
    # Prose says "at example.com" often, but seldom " @ " or "dot com".
    unusual = _DOT_WORD_APART.search(domain) is not None or domain.startswith(" @")
    if _DOT_WORD_APART.search(local):
        return True
    if _LIKE_A_NAME.search(local) and not _LIKE_A_FILE.search(local):
        return unusual or introduced
    if _NO_NAME.fullmatch(local) or not any(map(str.isalpha, local)):
        return False
    if " AT " in domain and not local.isupper():
        return True
    # A sentence may begin with a capital, and a verb may end in "ed".
    if not local.islower() or _INFLECTED.search(local):
        return False
    if _LABELLED.search(lower, before, start):
        return True
    if not unusual:
        return False
    if _BEFORE_A_VERB.search(lower, before, start) and not _ADDRESSED.search(lower, before, start):
        return False
    return (
        introduced
        or _is_alone_on_its_line(text, start, end)
        or _USED.search(lower, before, start) is not None
    )


def _is_alone_on_its_line(text: str, start: int, end: int) -> bool:
    before = text[max(0, start - _LONGEST_MARGIN) : start]
    after = text[end : end + _LONGEST_MARGIN]
    begins = "\n" in before or start <= _LONGEST_MARGIN
    ends = "\n" in after or end + _LONGEST_MARGIN >= len(text)
    first = before.rpartition("\n")[2]
    last = after.partition("\n")[0]
    return begins and ends and not first.strip(" \t-*•(<") and not last.strip(" \t.)>")
