"""Families of encoders, which predict masked tokens."""
