"""From batches to checkpoints: one loop for pretraining and post-training."""
