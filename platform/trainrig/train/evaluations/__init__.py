"""Evaluations in a training run: their settings, and the decisions that follow from scores."""
