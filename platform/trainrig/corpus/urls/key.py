"""Which URLs name the same page: what exact deduplication by URL compares."""

import hashlib
import re

from trainrig.corpus.urls.normalise import normalise

_SAME_EITHER_WAY = re.compile(r"https?://(?:www\.)?")


def compute_url_key(url: str) -> bytes:
    """BLAKE2b-128 of the normalised `url`, whether it is http or https, with "www." or without.

    Not what the held-out split goes by, which must not change: see `tokens.held_out`.
    """
    same = _SAME_EITHER_WAY.sub("", normalise(url), count=1) if url else ""
    return hashlib.blake2b(same.encode("utf-8", "surrogatepass"), digest_size=16).digest()
