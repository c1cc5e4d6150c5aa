"""Signatures of documents: normal form, shingles, MinHash."""
