"""Pretraining: the verb, the loop, the step and the state."""
