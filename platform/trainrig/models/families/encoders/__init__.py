"""Families of encoders that predict masked tokens."""
