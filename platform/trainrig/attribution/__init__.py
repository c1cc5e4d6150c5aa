"""From an answer to its pages: an index of the training tokens, and searches in it.

`open_index` opens what `trainrig index` wrote. The index counts any n-gram, gives the distribution
of the token after a context, and finds the documents in which a text stands verbatim.
"""

from trainrig.attribution.corpus_index import CorpusIndex, NextTokens, Occurrence, open_index

__all__ = ["CorpusIndex", "NextTokens", "Occurrence", "open_index"]
