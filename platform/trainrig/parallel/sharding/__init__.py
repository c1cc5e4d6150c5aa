"""Sharded parameters, and gradients: mixed precision, sums in a fixed order, and norms."""
