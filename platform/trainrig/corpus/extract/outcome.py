"""What extraction gives: a text and what the page says of itself, or a reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extracted:
    """What a page says."""

    text: str
    title: str  # "" where there is none
    language_hint: str  # what the page claims: "en", "" where it claims nothing


@dataclass(frozen=True)
class NotExtracted:
    """Why a page gave no text: "too_large", "too_deep", or "not_text" (an image, a script)."""

    reason: str
