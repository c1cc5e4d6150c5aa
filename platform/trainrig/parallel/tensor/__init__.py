"""Tensor parallelism: the ranks of an axis each have a part of every layer."""
