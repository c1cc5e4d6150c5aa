"""Text generation: sampling of the next token, key-value caches, and batches of prompts."""
