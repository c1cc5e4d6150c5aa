"""Finds public IPv4 and IPv6 addresses.

Four numbers may also be a version, or the number of a section. The words before them decide: a key
or an element such as `client_ip=`, `SRC=`, `<ip>` or `"host": "` announces an address, and
`version=` does not. `Views.lower` is bytes with one entry per character, so its positions are those
of the text.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import get_args

from trainrig.corpus.rewrite.pii_views import FindPosition, Kind, Views

_IPV4_SHAPE = re.compile(rb"0\.0{1,3}\.0{1,3}\.0")
_IPV4_BEGIN = re.compile(rb"0(?<![a0_.-]0)(?=0{0,2}\.0{1,3}\.0{1,3}\.0)")
_IPV4 = re.compile(r"(?<![\w.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])")
# Words before four numbers that are not an address: a version, a section, a table.
_COUNTED = (
    rb"v|vers?|versions?|releases?|released|update[ds]?|updated to|upgraded?(?: to| from)?"
    rb"|downgraded?(?: to| from)?|firmware|drivers?|builds?|rev|revisions?|patch"
    rb"|sdk|plugins?|packages?"
    rb"|sections?|sec|sect|\xa7{1,2}|chapters?|chap|ch|clauses?|articles?|art|paragraphs?"
    rb"|para|appendix"
    rb"|annex|tables?|figures?|fig|steps?|rules?|items?|parts?|examples?|exercises?|theorem|lemma"
    rb"|requirements?|controls?|subsections?|abschnitt|kapitel|ziffer|punkt|abs|secci\xf3n|sezione"
)
_BEFORE_A_VERSION = re.compile(
    rb"(?:(?<![a-z0-9])(?:" + _COUNTED + rb")[.:]?\s{0,3}[(\"']?|[=~<>^]=?\s{0,2}|[a-z0-9_]/)\Z"
)
# A key or an element whose value is an address ("client_ip=", `"host": "`, "<ip>"), or a version.
_BEFORE_A_VALUE = rb"[\"'`]?\s{0,2}(?::=|=>|[=:>])\s{0,2}[\"'`\[(]?\Z"
_AFTER_ADDRESS_KEY = re.compile(
    rb"(?:(?<![a-z])(?:src|dst|source|dest(?:ination)?|from|to|by|for|peer|client|server|host(?:name)?"
    rb"|remote|local|gateway|origin|endpoint|node|listen|bind|dns|proxy|router|target|sender|inet)"
    rb"|(?<![a-z])ip(?:v?4)?|(?:[_.-]|client|user|remote|source|host|server|peer|src|dst|local|public"
    rb"|external|x-real|forwarded)ip|addr(?:ess(?:es)?)?|forwarded-for)" + _BEFORE_A_VALUE
)
_AFTER_VERSION_KEY = re.compile(
    rb"(?:version|(?<![a-z])ver|release|build|revision|(?<![a-z])rev|firmware|firmwareversion|driver"
    rb"|section|(?<![a-z])v)(?:[_-]?(?:number|no|id|string))?" + _BEFORE_A_VALUE
)
# "Upgraded from: 4.8.0.12 to: 5.1.2.7".
_CHANGED_VERSION = re.compile(
    rb"(?<![a-z0-9])(?:" + _COUNTED + rb"),?(?: from| to)?[:=]\s{0,3}[\"'(]?\Z"
)
# An element of markup such as "<td>": what follows is its text, not the right side of a comparison.
_AFTER_ELEMENT = re.compile(rb"<[a-z][a-z0-9:_-]{0,24}(?: [^<>]{0,24})?>\s{0,2}\Z")
# A mask, or the spaces in its place while the search goes on.
_AFTER_MASK = re.compile(
    rb"(?:<(?:" + "|".join(get_args(Kind)).encode() + rb")(?:_[0-9]{1,9})?|(?:<|\A) *)>\s{0,2}\Z"
)
_AND_ANOTHER_ADDRESS = re.compile(rb"\s{0,3}(?:,|;|and|or|to[:=]?|through|und|-|/|\xe2)?\s{1,3}|-")
# The numbers of sections and versions are small; all four are in only one address of 250. Such
# numbers count as an address only if the context says so.
_SMALL_NUMBER = 64
_TINY_NUMBER = 10
_BEFORE_AN_ADDRESS = re.compile(
    rb"(?:(?<![a-z0-9])(?:ip(?:v4)?|ips|address(?:es)?|addr|hosts?|servers?|dns|nameservers?"
    rb"|resolvers?"
    rb"|gateway|router|proxy|subnet|netmask|inet|ping(?:ed|s)?|whois|nslookup|dig|traceroute|ssh"
    rb"|telnet"
    rb"|curl|(?:requests?|connect(?:ed|ions?)?|traffic|visit(?:ors?|ed)?|log(?:ged)?[ -]?ins?|hits?"
    rb"|packets?|queries|attacks?)(?: (?:to|from))?|answer(?:ed|s)?|block(?:ed)?|banned?"
    rb"|listen(?:s|ing)?"
    rb"|bind|machines?|calling)"
    rb"[^a-z0-9.\n<>]{0,3}(?: {0,1}(?:is|was|at|on|to|from|of|as))?[ :=(\"'\[]{0,3}|[a-z]://|@)\Z"
)
_AFTER_AN_ADDRESS = re.compile(rb":[0-9]{2,5}(?![0-9.])|/(?:[89]|[12][0-9]|3[0-2])(?![0-9.])")
_LONGEST_BEFORE_ADDRESS = 32  # characters
# Addresses of well-known DNS resolvers.
_KNOWN_RESOLVERS = frozenset(
    {"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "4.2.2.2", "4.2.2.1"}
)
# Prefixes of all allocated addresses (IANA's IPv6 Global Unicast Address Assignments, 2019-11), in
# lower case and with all zeros. Three groups at least, as shorter ones could be Python slices.
_IPV6 = re.compile(
    rb"2(?<![\w:.]2)(?:00[123]|4[01][0-9a-f]|6[0-3][0-9a-f]|80[0-9a-f]|a[01][0-9a-f]|c0[0-9a-f])"
    rb"(?::{1,2}[0-9a-f]{1,4}){2,7}(?:::)?(?![\w:])(?!\.[0-9])"
)


def find_ipv4(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of public addresses, but not of version or section numbers."""
    if not _IPV4_SHAPE.search(views.shape):
        return
    last = -1
    was_address = False
    for found in views.find_matches(_IPV4, _IPV4_BEGIN):
        start, end = found.span()
        before = views.lower[max(0, start - _LONGEST_BEFORE_ADDRESS) : start]
        follows = last >= 0 and _AND_ANOTHER_ADDRESS.fullmatch(views.lower, last, start)
        if _AFTER_VERSION_KEY.search(before) or _is_after_mask(views, start, end):
            is_address = False
        elif follows:
            is_address = was_address
        elif _AFTER_ADDRESS_KEY.search(before):
            is_address = not _CHANGED_VERSION.search(before)
        elif _BEFORE_A_VERSION.search(before) and not _AFTER_ELEMENT.search(before):
            is_address = False
        else:
            is_address = not _is_small(found.group()) or bool(
                _BEFORE_AN_ADDRESS.search(before) or _AFTER_AN_ADDRESS.match(views.lower, end)
            )
        last = end
        was_address = is_address
        if is_address and _is_public(found.group()):
            yield start, end


def _is_after_mask(views: Views, start: int, end: int) -> bool:
    """Return whether a masked find comes before, which is no element of markup.

    An element that is named like a mask, such as <IP>, is also closed.
    """
    before = views.raw[max(0, start - _LONGEST_BEFORE_ADDRESS) : start]
    return _AFTER_MASK.search(before) is not None and not views.text.startswith("</", end)


def _is_small(address: str) -> bool:
    """Return whether the four numbers are as small as in sections and versions."""
    first, *others = map(int, address.split("."))
    return address not in _KNOWN_RESOLVERS and (
        max(others) < _TINY_NUMBER or (first < _SMALL_NUMBER and max(others) < _SMALL_NUMBER)
    )


def find_ipv6(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of allocated addresses that are not reserved for documentation."""
    for found in _IPV6.finditer(views.lower):
        if _is_public(found.group().decode("ascii")):
            yield found.span()


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
