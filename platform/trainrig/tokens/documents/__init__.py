"""Readers of the documents that tokenizers are trained on and shards are made of."""
