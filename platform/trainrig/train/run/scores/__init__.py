"""The scores of a run's checkpoints: their records, and their charts in the report."""
