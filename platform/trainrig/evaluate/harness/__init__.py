"""lm-evaluation-harness on our checkpoints."""
