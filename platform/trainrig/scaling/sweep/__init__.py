"""Sweeps: small models trained by Ray Tune, and the table of their losses."""
