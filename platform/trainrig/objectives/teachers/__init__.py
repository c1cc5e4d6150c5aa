"""Objectives with a teacher model, and divergences from it computed from hidden states."""
