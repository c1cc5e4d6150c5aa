"""Key by which exact deduplication recognises URLs of the same page."""

import hashlib
import re

from trainrig.corpus.urls.normalise import normalise

_SAME_EITHER_WAY = re.compile(r"https?://(?:www\.)?")


def compute_url_key(url: str) -> bytes:
    """Return the 16-byte BLAKE2b digest of the normalised `url`, without scheme and "www.".

    The held-out split uses a rule of its own that must not change: see `tokens.held_out`.
    """
    same = _SAME_EITHER_WAY.sub("", normalise(url), count=1) if url else ""
    return hashlib.blake2b(same.encode("utf-8", "surrogatepass"), digest_size=16).digest()
