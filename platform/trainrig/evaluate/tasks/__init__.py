"""Benchmarks as data: where their rows are, how a row becomes a prompt, what of it is scored."""
