"""The document: the output of the corpus stages and the input of tokenization."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A text with its origin. Signals are columns of its row, not fields."""

    id: str  # `compute_document_id`: 32 hex digits
    url: str
    text: str
    source: str  # name of the source in the run file
    language: str  # ISO 639 code, or "" if not identified
    date: str  # ISO 8601 time when the page was fetched
    metadata: str = "{}"  # a JSON object


def compute_document_id(source: str, url: str, body: bytes) -> str:
    """Compute BLAKE2b-128, in hex, over the source, the URL and the SHA-256 of the raw body.

    The text is not included, so a better extractor gives the same document a better text.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (source, "\n", url, "\n"):
        digest.update(part.encode("utf-8", "surrogatepass"))
    digest.update(hashlib.sha256(body).digest())
    return digest.hexdigest()
