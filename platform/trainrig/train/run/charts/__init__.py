"""Charts of the report of a training run, by subject."""
