"""Distillation: what a teacher expects of each token, kept beside conversations and read back."""
