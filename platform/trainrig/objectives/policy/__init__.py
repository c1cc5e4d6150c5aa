"""Policy-gradient objectives, which learn from rewards of the model's own answers."""
