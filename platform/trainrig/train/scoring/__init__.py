"""Scoring checkpoints of a run while it trains."""
