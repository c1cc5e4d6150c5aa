"""Bidirectional models, whose tokens attend to both sides: their settings and their network."""
