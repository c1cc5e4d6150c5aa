"""Addresses of machines on the public internet, IPv4 and IPv6."""

import ipaddress
import re
from collections.abc import Iterator

from trainrig.corpus.rewrite.pii.views import Place, Views

_IPV4_SHAPE = re.compile(rb"0\.0{1,3}\.0{1,3}\.0")
_IPV4 = re.compile(r"(?<![\w.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])")
_BEFORE_A_VERSION = re.compile(
    r"(?:\bv|\bver|\bversions?|\brelease[sd]?|\bbuild|\brev|\brevision|\bsection|§)[.:]?\s*$",
    re.IGNORECASE,
)
# All that is allocated begins so (IANA's IPv6 Global Unicast Address Assignments, 2019-11), in
# lower case and with its zeros. Shorter ones than of three groups could be slices of Python.
_IPV6 = re.compile(
    rb"2(?<![\w:.]2)(?:00[123]|4[01][0-9a-f]|6[0-3][0-9a-f]|80[0-9a-f]|a[01][0-9a-f]|c0[0-9a-f])"
    rb"(?::{1,2}[0-9a-f]{1,4}){2,7}(?:::)?(?![\w:])(?!\.[0-9])"
)


def find_ipv4(views: Views) -> Iterator[Place]:
    """The places of addresses that are not private, reserved, or the number of a version."""
    if not _IPV4_SHAPE.search(views.shape):
        return
    for found in _IPV4.finditer(views.text):
        before = views.text[max(0, found.start() - 12) : found.start()]
        if _is_public(found.group()) and not _BEFORE_A_VERSION.search(before):
            yield found.span()


def find_ipv6(views: Views) -> Iterator[Place]:
    """The places of addresses that are allocated and not for documentation alone."""
    for found in _IPV6.finditer(views.lower):
        if _is_public(found.group().decode("ascii")):
            yield found.span()


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
