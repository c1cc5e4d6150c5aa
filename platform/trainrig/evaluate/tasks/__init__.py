"""Benchmarks defined as data: their rows, the prompts made from rows, and the scoring."""
