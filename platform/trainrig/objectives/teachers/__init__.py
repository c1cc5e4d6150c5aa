"""Objectives against a teacher, and how far a model is from it, from hidden states."""
