"""Tensor parallelism: each rank of an axis has a part of every layer."""
