"""Post-training: fine-tuning, preference learning, sampling and scoring of a checkpoint."""
