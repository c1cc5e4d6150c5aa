"""The run folder: metrics, events, samples, goodput, report."""
