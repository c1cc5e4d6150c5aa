"""Evaluation of a model's text embeddings: linear probes and retrieval."""
