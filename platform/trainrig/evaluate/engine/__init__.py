"""Requests to a model, in batches that are the same whoever computes them."""
