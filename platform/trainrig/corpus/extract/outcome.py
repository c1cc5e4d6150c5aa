"""What extraction gives: a text and what the page says of itself, or a reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extracted:
    """What a page says."""

    text: str
    title: str  # "" where there is none
    language_hint: str  # what the page claims: "en", "" where it claims nothing
    date: str = ""  # ISO 8601 day on which it says it was published, "" where it does not
    # Of the characters of the page's main content, how many the text has; None where the extractor
    # takes no second look to know.
    share: float | None = None


@dataclass(frozen=True)
class NotExtracted:
    """Why a page gave no text.

    "too_large", "too_deep", "too_many_nodes": beyond a limit of the extractor's. "not_text": of
    the type of an image, a script. "binary": bytes that are no text, under the type of a page.
    "empty": nothing is left. "cpu_time", "memory", "crashed": it was the end of
    the process that extracted it (see guard.py).
    """

    reason: str
