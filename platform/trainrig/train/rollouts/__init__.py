"""Batches made during training, and rollouts sampled for them by ranks or Ray actors."""
