"""Sampling by processes of their own: what is asked of them, with which weights, and the pool."""
