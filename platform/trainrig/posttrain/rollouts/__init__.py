"""Reinforcement learning: a model's own completions, what they are worth, training on them."""
