"""Sampling of rollouts in separate processes: requests, weights and the sampler."""
