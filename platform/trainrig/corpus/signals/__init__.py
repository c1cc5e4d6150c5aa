"""Signals of a text, by which rules keep or drop it, and the arrays that they are computed from."""
