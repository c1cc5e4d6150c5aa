"""Finds telephone numbers, in formats that distinguish them from other numbers.

International: a plus and 8 to 15 digits (ITU-T E.164). North American: area and exchange codes do
not begin with 0 or 1 (NANP); numbers separated by spaces alone are excluded, as rows of tables look
the same. Other national formats count only after a word that announces a number: "Tel. 030 123456".
"""

import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii_views import FindPosition, Views

_INTERNATIONAL = re.compile(
    r"\+(?<![\w.+/-]\+)[1-9](?:[ .-]?(?:\([0-9]{1,4}\)|[0-9])){7,18}(?![\w/-]|[.,][0-9])"
)
_AMERICAN_SHAPE = re.compile(rb"000(?:\) ?|[.-])000[ .-]0000")
_AMERICAN = re.compile(
    r"(?<![\w.+/-])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[ .-][0-9]{4}"
    r"(?![\w/-]|[.,][0-9])"
)
# One slash, after the area code; otherwise space, dot, dash and brackets. At least seven digits:
# most numbers are shorter and are rejected at once.
_NATIONAL_SHAPE = re.compile(
    rb"0(?<![A-Za-z0-9_.+/-]0)(?=(?:[ ()./-]{0,9}0){6})"
    rb"(?:[0)]{1,6} ?/ ?0)?(?:[ ().-]{0,3}0){2,17}(?![\w/-]|[.,]0)"
)
_NATIONAL_DIGITS = range(7, 19)  # including the prefix to dial for relay services
_LABEL = re.compile(
    rb"\b(?:(?:tele)?(?:phone?|fon|fax)|tel|t\xe9l(?:\xe9phone)?|mobile?|mobil(?:e|telefon)?|handy"
    rb"|cell|call|whatsapp|hotline|ruf(?:nummer)?|gsm|tfno|telefono|tel\xe9fono|telefax|ph|tlf|puh"
    rb"|telefone|telefoon|celular|cellulare|m\xf3vil|portable|helpline|toll[ -]?free|freephone"
    rb"|appelez|llame|ll\xe1menos|chiam[ai](?:re|teci)?|ligue|dial|ring|sms|text)"
    rb"(?: (?:no|nr|number|us (?:at|on|under)|(?:me|him|her|them|us|our \w{2,12})(?: (?:at|on))?"
    rb"|at|on"
    rb"|le|al|il|para|auf))?[.:]{0,2}\s{0,3}\(?\Z"
)
# Words for telephones some words before the number; the number must then look like one.
_SPOKEN_OF = re.compile(
    rb"\b(?:(?:tele)?phones?|tele(?:f|ph)on\w{0,4}|tel|mobile|cell|call|ring|dial|reach(?:ed)?"
    rb"|hotline"
    rb"|helpline|fax|whatsapp|text|sms|contact|anrufen|rufen|appelez|appeler|llam\w{1,4}"
    rb"|chiam\w{1,4}"
    rb"|ligue|bel)\b[^0-9.!?\n<>]{0,32}\(?\Z"
)
_NATIONAL_LOOKS = re.compile(
    r"0[0-9]{4,5} [0-9]{5,6}|\(?0[0-9]{1,4}\)?[ ./-]{1,3}[0-9]{2,8}(?:[ .-][0-9]{2,8}){0,4}"
    r"|0[0-9]{8,11}"
    r"|[2-9][0-9]{2} [2-9]"
    r"[0-9]{2} [0-9]{4}|1?[38]00 [0-9]{3} [0-9]{3,4}|\([0-9]{2,3}\) ?[0-9]{3,5}[ -][0-9]{3,5}"
    r"|[0-9]{2,3}(?:[ -][0-9]{2,4}){2,4}"
)
_LONGEST_LABEL = 48  # characters
_AND_ANOTHER = re.compile(rb"\s{0,3}(?:or|oder|ou|and|und|et|[,;/])?\s{1,3}\(?")
# An area code in brackets that begins with the trunk prefix 0 of national calls.
_BRACKETS_SHAPE = re.compile(rb"\(00{1,4}\) ?00")
_IN_BRACKETS = re.compile(
    r"(?<![\w.+/-])\(0[0-9]{1,4}\) ?[0-9]{2,8}(?:[ -][0-9]{2,4}){0,3}(?![\w/-]|[.,][0-9])"
)
_BRACKETS_DIGITS = range(9, 13)
# A decimal number of degrees, alone or (ISO 6709) followed by its longitude.
_DEGREES = re.compile(
    r"\+[0-9]{1,3}\.[0-9]{4,8}|\+[0-9]{2,6}(?:\.[0-9]+)?[ -]+[0-9]{2,7}(?:\.[0-9]*)?"
)
_PAIR_OF_DECIMALS = re.compile(r"[0-9]{1,3}\.[0-9]{3,}[ ,-]+[0-9]{1,3}\.[0-9]{3,}")
_DATE = re.compile(r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]|[0-3]?[0-9][.-][01]?[0-9][.-][12][0-9]{3}")
_DIGIT = r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)"
_SPELT = re.compile(rf"(?<![\w-]){_DIGIT}(?:[ -]{_DIGIT}){{6,14}}(?![\w-])", re.IGNORECASE)
# Letters of spelt digits, spaces and dashes become " ", others "x". Seven digits take at least 20
# characters.
_OF_DIGITS = bytes(
    ord(" " if chr(code).lower() in "zeroohonetwothreefourfivesixseveneightnine -" else "x")
    for code in range(256)
)
_SEVEN_DIGITS = b" " * 20


def find_international(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of numbers with a plus, except degrees that no word announces as a number."""
    if "+" in views.text:
        for found in _INTERNATIONAL.finditer(views.text):
            if not 8 <= sum(map(str.isdigit, found.group())) <= 15:
                continue
            if _is_degrees(views, *found.span()) and not _is_labelled(views, found.start()):
                continue
            yield found.span()


def _is_degrees(views: Views, start: int, end: int) -> bool:
    text = views.text[start:end]
    alone = _DEGREES.fullmatch(text)
    # A longitude may look like further groups of the number, and continue after a full stop.
    return bool(alone) and ("." in text or views.text[end : end + 1] in ".°/")


def _is_labelled(views: Views, start: int) -> bool:
    return _LABEL.search(views.lower, max(0, start - _LONGEST_LABEL), start) is not None


def find_american(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of numbers of the United States, Canada and other NANP countries."""
    if _AMERICAN_SHAPE.search(views.shape):
        for found in _AMERICAN.finditer(views.text):
            yield found.span()


def find_in_brackets(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of national numbers with an area code in brackets: "(020) 7946 0958"."""
    if _BRACKETS_SHAPE.search(views.shape):
        for found in _IN_BRACKETS.finditer(views.text):
            if sum(map(str.isdigit, found.group())) in _BRACKETS_DIGITS:
                yield found.span()


def find_labelled(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of numbers after a word that announces one, or after another such number."""
    last = -1
    end = 0
    for begin in views.number_starts:
        found = _NATIONAL_SHAPE.match(views.shape, begin) if begin >= end else None
        if not found:
            continue
        start, end = found.span()
        text = views.text[start:end]
        if found.group().count(b"0") not in _NATIONAL_DIGITS or _PAIR_OF_DECIMALS.match(text):
            continue
        if _DATE.fullmatch(text):  # the date of a call
            continue
        another = last >= 0 and _AND_ANOTHER.fullmatch(views.lower, last, start)
        if another or _is_labelled(views, start) or _is_spoken_of(views, start, text):
            last = end
            yield start - views.lower.endswith(b"(", 0, start), end


def _is_spoken_of(views: Views, start: int, text: str) -> bool:
    opened = "(" * views.lower.endswith(b"(", 0, start)
    if not _NATIONAL_LOOKS.fullmatch(opened + text):
        return False
    return _SPOKEN_OF.search(views.lower, max(0, start - _LONGEST_LABEL), start) is not None


def find_spelt(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of numbers in words.

    These are ten digits that are valid in North America, or 7 to 15 after a word that announces a
    number.
    """
    letters = views.raw.translate(_OF_DIGITS)
    begin = end = letters.find(_SEVEN_DIGITS)
    while begin >= 0:
        end = letters.find(b"x", begin)
        end = len(letters) if end < 0 else end
        for found in _SPELT.finditer(views.text, begin, end + 1):
            words = re.split("[ -]", found.group().lower())
            american = len(words) == 10 and not {words[0], words[3]} & {"zero", "oh", "one"}
            if american or _is_labelled(views, found.start()):
                yield found.span()
        begin = letters.find(_SEVEN_DIGITS, end)
