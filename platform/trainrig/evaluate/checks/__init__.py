"""When an answer that a model wrote is right."""
