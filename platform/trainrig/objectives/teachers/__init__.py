"""How far a model is from its teacher, from hidden states, with slopes."""
