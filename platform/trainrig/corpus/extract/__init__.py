"""From the bytes of a page to the text a reader would want, and what the page says of itself.

A new extractor: its settings in kinds.py, a line in page.py.
"""

from trainrig.corpus.extract.extract_page import extract
from trainrig.corpus.extract.kinds import (
    Extractor,
    MainContent,
    PlainText,
    Resiliparse,
    Trafilatura,
)
from trainrig.corpus.extract.outcome import Extracted, NotExtracted

__all__ = [
    "Extracted",
    "Extractor",
    "MainContent",
    "NotExtracted",
    "PlainText",
    "Resiliparse",
    "Trafilatura",
    "extract",
]
