"""Scaling laws: sweep small models, fit their losses, plan the large run."""
