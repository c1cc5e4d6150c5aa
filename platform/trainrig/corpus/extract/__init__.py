"""Extraction of the main text and of metadata from the bytes of a page.

To add an extractor, write its settings next to extractors.py, add the class to
`Extractor`, and add a branch to extract_page.py.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.extract.extract_page import extract as extract
from trainrig.corpus.extract.extractors import Extracted as Extracted
from trainrig.corpus.extract.extractors import MainContent as MainContent
from trainrig.corpus.extract.extractors import NotExtracted as NotExtracted
from trainrig.corpus.extract.extractors import PlainText as PlainText
from trainrig.corpus.extract.extractors import Resiliparse as Resiliparse
from trainrig.corpus.extract.extractors import Trafilatura as Trafilatura
from trainrig.corpus.extract.extractors import finds_page_kind as finds_page_kind
from trainrig.corpus.extract.extractors import reads_permissions as reads_permissions

Extractor = Annotated[
    MainContent | Resiliparse | Trafilatura | PlainText, Field(discriminator="kind")
]
