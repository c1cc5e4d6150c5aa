"""Kinds of tokenizers, their training, and the sample of text that they are trained on."""
