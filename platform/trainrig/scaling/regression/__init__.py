"""Regressions that fit scaling laws to training runs, with intervals and held-out tests."""
