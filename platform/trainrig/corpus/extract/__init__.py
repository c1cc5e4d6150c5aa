"""From the bytes of a page to the text a reader would want, its title, and its stated language."""

from trainrig.corpus.extract.outcome import Extracted, NotExtracted
from trainrig.corpus.extract.page import Extractor, PlainText, Resiliparse, extract

__all__ = ["Extracted", "Extractor", "NotExtracted", "PlainText", "Resiliparse", "extract"]
