"""The rule that selects the documents which are held out of training."""

import hashlib
import re
from urllib.parse import urlsplit, urlunsplit


def is_held_out(url: str, share: float) -> bool:
    """Return whether the document at `url` is held out of training, if `share` of all are.

    Depends only on the hash of the normalised URL. A document stays in training or held out if
    other documents are added and if it is fetched again; a held-out document also stays held out if
    `share` rises. For a document without a URL, pass another unique string, such as its id.
    """
    if share == 0:
        return False
    digest = hashlib.blake2b(normalise_url(url).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


# Pattern of most URLs, which need no parsing: only slashes at the end are removed.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?:/[!\"$->@-~]*)?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalise_url(url: str) -> str:
    """Return a normal form of `url`, which is the same for other spellings of it.

    Scheme and host are in lower case; there is no default port, no fragment and no slash at the
    end; the query's parameters are sorted. A URL that cannot be parsed is returned unchanged.
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
