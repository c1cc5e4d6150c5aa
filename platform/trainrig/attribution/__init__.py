"""From an answer to its pages: an index of the training tokens, and searches in it.

`open_index` opens what `trainrig index` wrote. The index counts any n-gram, gives the distribution
of the token after a context, and finds the documents in which a text stands verbatim.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainrig.attribution.corpus_index import CorpusIndex, NextTokens, Occurrence, open_index

__all__ = ["CorpusIndex", "NextTokens", "Occurrence", "open_index"]


def __getattr__(name: str) -> Any:
    # Imported at first use: the command line imports this folder, and numpy takes a while.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.corpus_index"), name)
