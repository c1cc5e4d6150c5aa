"""Scoring of a run's checkpoints while it trains."""
