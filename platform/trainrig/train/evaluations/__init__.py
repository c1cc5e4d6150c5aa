"""Evaluations in a training run: what is asked when, and what is decided by the scores."""
