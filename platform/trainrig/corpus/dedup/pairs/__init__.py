"""Candidate pairs of documents, found by partitions of their keys, and their verification."""
