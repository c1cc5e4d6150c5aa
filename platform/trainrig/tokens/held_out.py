"""Which documents are held out of training."""

import hashlib
import re
from urllib.parse import urlsplit, urlunsplit


def is_held_out(url: str, share: float) -> bool:
    """Whether the document at `url` is held out of training.

    Goes by the hash of the normalised URL alone: a document keeps its side when others are added,
    when it is fetched again, and when `share` rises (whoever was held out stays so). A document
    without a URL needs something else of its own here, such as its id.
    """
    if share == 0:
        return False
    digest = hashlib.blake2b(normalise_url(url).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


# What most URLs are, which need no parsing: only slashes at the end can go.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?:/[!\"$->@-~]*)?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalise_url(url: str) -> str:
    """`url` as its other spellings have it too.

    Scheme and host in lower case; no default port, no fragment, no slash at the end; the query's
    parameters sorted. What cannot be parsed stays as it is.
    """
    if _PLAIN.fullmatch(url):
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host}{(slash + path).rstrip('/')}"
    return _normalise_parts(url)


def _normalise_parts(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return url
    host = parts.hostname or ""
    if ":" in host:  # IPv6
        host = f"[{host}]"
    if port not in (None, _DEFAULT_PORTS.get(parts.scheme)):
        host = f"{host}:{port}"
    user, at, _ = parts.netloc.rpartition("@")
    query = "&".join(sorted(parts.query.split("&")))
    return urlunsplit((parts.scheme, user + at + host, parts.path.rstrip("/"), query, ""))
