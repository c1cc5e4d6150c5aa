"""Text generation with vLLM, an optional package, for checkpoints and for rollouts."""
