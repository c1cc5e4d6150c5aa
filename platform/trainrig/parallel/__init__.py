"""Parallel layouts of one model over many devices, applied to the model from outside."""
