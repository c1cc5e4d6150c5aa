"""The document: what the corpus floor hands to the tokens floor."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One text and where it is from. Signals about it are columns beside it, not fields."""

    id: str  # `compute_document_id`: 32 hex digits
    url: str
    text: str
    source: str  # the mixture's domain
    language: str  # ISO 639 code, or "" where nobody asked
    date: str  # ISO 8601, when the page was fetched
    metadata: str = "{}"  # a JSON object


def compute_document_id(source: str, url: str, body: bytes) -> str:
    """BLAKE2b-128 over the source, the URL and the SHA-256 of the raw body, in hex.

    The text has no part in it: a better extractor gives the same document a better text.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (source, "\n", url, "\n"):
        digest.update(part.encode("utf-8", "surrogatepass"))
    digest.update(hashlib.sha256(body).digest())
    return digest.hexdigest()
