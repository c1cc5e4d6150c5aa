"""The documents that tokenizers and shards are made of."""
