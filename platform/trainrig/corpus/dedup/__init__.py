"""Finding texts that are the same, or nearly: exact digests, MinHash candidates, the decision.

A new way to find near-duplicates: a file beside this, and its name in `NearDuplicates`. (One for
now; pydantic discriminates from two on.)
"""

from trainrig.corpus.dedup.signatures.minhash import MinHash

__all__ = ["MinHash", "NearDuplicates"]

NearDuplicates = MinHash
