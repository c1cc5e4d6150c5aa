"""Signatures of documents: normal form, shingles and MinHash values."""
