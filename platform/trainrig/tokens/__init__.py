"""From text to token ids: tokenizers, token shards, and the batches that training reads."""
