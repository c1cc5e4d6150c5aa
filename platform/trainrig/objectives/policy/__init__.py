"""Policy gradients: learning from what the model's own answers are worth."""
