"""What a run's model says and knows before the first step and after the last."""
