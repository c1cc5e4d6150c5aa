"""Candidate pairs of documents, by partition of their keys, and their verification."""
