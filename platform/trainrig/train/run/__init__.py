"""The run folder: metrics, events, samples, goodput and the report."""
