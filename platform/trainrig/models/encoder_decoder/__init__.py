"""Encoder-decoder models, which read one text and write another: settings, network, generation."""
