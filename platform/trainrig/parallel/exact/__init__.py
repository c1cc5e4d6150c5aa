"""Gradient sums in one fixed order, whichever rank computed the summands."""
