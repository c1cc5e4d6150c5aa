"""Extraction of the main text and of metadata from the bytes of a page.

To add an extractor, write its settings next to extractors.py, add the class to
`Extractor`, and add a branch to extract_page.py.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.extract.extract_page import extract
from trainrig.corpus.extract.extractors import (
    Extracted,
    MainContent,
    NotExtracted,
    PlainText,
    Resiliparse,
    Trafilatura,
    finds_page_kind,
    reads_permissions,
)

Extractor = Annotated[
    MainContent | Resiliparse | Trafilatura | PlainText, Field(discriminator="kind")
]

__all__ = [
    "Extracted",
    "Extractor",
    "MainContent",
    "NotExtracted",
    "PlainText",
    "Resiliparse",
    "Trafilatura",
    "extract",
    "finds_page_kind",
    "reads_permissions",
]
