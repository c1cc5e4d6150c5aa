"""Models that read one text and write another: their settings, and the network."""
