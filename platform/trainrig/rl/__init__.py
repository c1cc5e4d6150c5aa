"""Reinforcement learning: from prompts to stored batches of sampled and scored completions."""
