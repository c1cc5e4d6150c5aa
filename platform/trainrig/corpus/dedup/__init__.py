"""Deduplication of equal and similar texts: exact digests, MinHash candidates, decisions.

To add a method for near-duplicates, add a module to this package and its name to `NearDuplicates`.
(There is one for now; pydantic discriminates from two on.)
"""

from trainrig.corpus.dedup.signatures.minhash import MinHash

__all__ = ["MinHash", "NearDuplicates"]

NearDuplicates = MinHash
