"""Encoding of text to token ids, and decoding."""
