"""Results of an extraction: a text with metadata, or the reason why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extracted:
    """The extracted text and metadata of a page."""

    text: str
    title: str  # "" if the page has none
    language_hint: str  # language that the page declares, such as "en"; "" if none
    date: str = ""  # ISO 8601 day of publication that the page declares; "" if none
    # Share of the characters of the page's main content that the text has; None if the extractor
    # does not measure it.
    share: float | None = None


@dataclass(frozen=True)
class NotExtracted:
    """Reason why a page gave no text.

    "too_large", "too_deep", "too_many_nodes": beyond a limit of the extractor. "not_text": the
    content type is that of an image, a script or similar. "binary": the bytes are not text,
    although the content type is. "empty": no text is left. "cpu_time", "memory", "crashed": the
    process that extracted the page died (see guard.py).
    """

    reason: str
