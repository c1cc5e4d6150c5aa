"""Extraction of the main text and of metadata from the bytes of a page.

To add an extractor, add its settings to kinds.py and a branch to extract_page.py.
"""

from trainrig.corpus.extract.extract_page import extract
from trainrig.corpus.extract.extractors import (
    Extracted,
    Extractor,
    MainContent,
    NotExtracted,
    PlainText,
    Resiliparse,
    Trafilatura,
)

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
