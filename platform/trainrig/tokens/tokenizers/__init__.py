"""Tokenizers by kind, and the text they are trained on."""
