"""Distillation: a teacher's token probabilities, stored beside conversations and read back."""
