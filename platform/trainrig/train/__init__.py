"""Training runs: the training loop, one step, the state, and the settings of a run."""
