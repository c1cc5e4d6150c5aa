"""Evaluation of checkpoints: benchmarks, held-out loss, embeddings, scorecards and comparisons."""
