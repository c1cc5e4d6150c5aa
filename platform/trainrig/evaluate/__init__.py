"""How good a checkpoint is, in numbers."""
