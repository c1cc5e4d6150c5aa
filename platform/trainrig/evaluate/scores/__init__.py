"""Scored rows to numbers that say how sure they are."""
