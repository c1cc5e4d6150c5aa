"""Sampling of answers to prompts, and selection of the best by reward as training rows."""
