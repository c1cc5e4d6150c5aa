"""How one model is spread over many devices; applied to a model from outside it."""
