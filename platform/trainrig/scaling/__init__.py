"""Scaling laws: sweep small models, fit laws to their losses, and plan a large run."""
