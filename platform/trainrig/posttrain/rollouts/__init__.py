"""Reinforcement learning: samples completions of a model, scores them, and trains on them."""
