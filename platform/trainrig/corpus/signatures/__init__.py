"""Signatures of texts for deduplication: digests, shingles and MinHash values."""
