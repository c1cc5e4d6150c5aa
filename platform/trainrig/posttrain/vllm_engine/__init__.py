"""Generation by vLLM, where that is installed: of checkpoints, and of rollouts."""
