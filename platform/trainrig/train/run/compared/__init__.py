"""Comparison of a run's model before the first step and after the last."""
