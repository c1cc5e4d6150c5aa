"""A model's answers to prompts in files: the best of them, by rewards, as rows to train on."""
