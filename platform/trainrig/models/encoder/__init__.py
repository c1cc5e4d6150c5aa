"""Models whose tokens see those before and after them: their settings, and the network."""
