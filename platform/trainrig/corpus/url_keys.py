"""Normal form of URLs, and the key by which exact deduplication recognises URLs of one page.

The normal form is that of RFC 3986, section 6.2, without tracking parameters. The held-out split
uses a rule of its own (`tokens.held_out`). That rule folds fewer spellings and must not change, so
that no document moves between splits.
"""

import hashlib
import re

# Matches http and https only: user before the host, port after it.
_URL_PARTS = re.compile(
    r"(https?)://(?:([^/?#]*)@)?([^/?#@:\[\]]*|\[[^/?#@\]]*\])(?::([0-9]*))?"
    r"(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?",
    re.IGNORECASE | re.DOTALL,
)
# Most URLs match this pattern and need only their trailing slashes removed.
_PLAIN_URL = re.compile(
    r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:/(?!\.)[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/*"
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_UNSAFE = re.compile(r"%([0-9A-Fa-f]{2})|%|[^!-~]+")
_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_SESSION_IN_PATH = re.compile(r";(?:jsessionid|phpsessid|sessionid)=[^/;]*", re.IGNORECASE)
# Parameters that identify the visitor, referrer or advertisement, and never the page content.
_TRACKING = re.compile(
    r"utm_\w+|ga_\w+|_ga|_gl|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid"
    r"|li_fat_id|igshid|igsh|mc_[ce]id|mkt_tok|_hsenc|_hsmi|__hs\w+|hsctatracking|oly_\w+_id"
    r"|vero_\w+|wt_mc|wickedid|srsltid|jsessionid|phpsessid|aspsessionid\w*|sessionid|session_id",
    re.IGNORECASE,
)


def normalise_url(url: str) -> str:
    """Return the normal form of `url`.

    Idempotent. A text that is not an HTTP URL only loses surrounding white space.

    - Scheme and host in lower case, without a trailing dot; international names are not converted.
    - No default port, no fragment (not even "#!"), no tracking parameter, no session id.
    - Escapes in upper case, and only for characters that need them.
    - No dot segments, no trailing slash, not even after a bare host.
    - Parameters sorted by name, equal names in their original order; "?" only before parameters.
    - "http" and "https" stay different, as do "www." and none: `compute_url_key` merges them.
    """
    if _PLAIN_URL.fullmatch(url):
        return url.rstrip("/")
    bare = url.strip("\0\t\n\r\x0b\x0c ")
    parts = _URL_PARTS.fullmatch(bare)
    if parts is None:
        return bare
    scheme, user, host, port, path, query = parts.groups()
    scheme = scheme.lower()
    host = host.lower().rstrip(". \0\t\n\r\x0b\x0c")
    path = _SESSION_IN_PATH.sub("", _escape_part(path or ""))
    pieces = [
        f"{scheme}://",
        f"{user}@" if user else "",
        host,
        f":{port}" if port and port != _DEFAULT_PORTS[scheme] else "",
        _remove_dots(path).rstrip("/"),
    ]
    if kept := _drop_tracking_parameters(_escape_part(query or "")):
        pieces.append(f"?{kept}")
    return "".join(pieces)


def _escape_part(part: str) -> str:
    return _UNSAFE.sub(_escape, part)


def _escape(found: re.Match[str]) -> str:
    if digits := found.group(1):
        sign = chr(int(digits, 16))
        return sign if sign in _UNRESERVED else f"%{digits.upper()}"
    # A lone "%" is escaped too: the text after it may decode to digits and form an escape.
    return "".join(f"%{byte:02X}" for byte in found.group().encode("utf-8", "surrogatepass"))


def _remove_dots(path: str) -> str:
    """Remove dot segments from a path (RFC 3986, section 5.2.4).

    The path must be empty or begin with a slash.
    """
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "".join(f"/{segment}" for segment in kept)


def _drop_tracking_parameters(query: str) -> str:
    pairs = [(pair.partition("=")[0], pair) for pair in query.split("&") if pair]
    kept = [(name, pair) for name, pair in pairs if not _TRACKING.fullmatch(name)]
    kept.sort(key=lambda pair: pair[0])
    return "&".join(pair for _, pair in kept)


_SAME_EITHER_WAY = re.compile(r"https?://(?:www\.)?")


def compute_url_key(url: str) -> bytes:
    """Return the 16-byte BLAKE2b digest of the normalised `url`, without scheme and "www.".

    The held-out split uses a rule of its own that must not change: see `tokens.held_out`.
    """
    same = _SAME_EITHER_WAY.sub("", normalise_url(url), count=1) if url else ""
    return hashlib.blake2b(same.encode("utf-8", "surrogatepass"), digest_size=16).digest()
