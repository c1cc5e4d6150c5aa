"""lm-evaluation-harness with trainrig's checkpoints as models."""
