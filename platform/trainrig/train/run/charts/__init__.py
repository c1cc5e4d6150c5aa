"""Charts of the report of a training run, by what they show."""
