"""Deduplication of equal and similar documents: candidates, verified pairs and decisions.

To add a method for near-duplicates, add its settings to `NearDuplicates`. (There is one for now;
pydantic discriminates from two on.)
"""

from trainrig.corpus.signatures.minhash import MinHash

__all__ = ["MinHash", "NearDuplicates"]

NearDuplicates = MinHash
