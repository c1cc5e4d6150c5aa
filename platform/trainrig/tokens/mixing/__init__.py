"""The order in which training reads rows: stages, source weights, epochs and shuffling."""
