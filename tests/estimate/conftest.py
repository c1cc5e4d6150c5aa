"""Rows of random documents, and a tokenizer with all special tokens of the objectives."""

from support.denoising_rows import encoder, make_rows

__all__ = ["encoder", "make_rows"]
