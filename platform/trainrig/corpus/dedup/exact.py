"""Texts that are equal but for letter case, white space and ways to write an accent."""

import hashlib
import unicodedata


def text_digest(text: str) -> bytes:
    """BLAKE2b-128 of the text in NFC, lower case, each run of white space one blank."""
    # NFC comes last: lower-casing may leave decomposed letters ("İ" becomes "i" and a dot).
    folded = unicodedata.normalize("NFC", " ".join(text.lower().split()))
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()
