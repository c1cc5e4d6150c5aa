"""Rows that training reads: packing of documents, mixing of sources, and their order."""
